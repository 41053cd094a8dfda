"""Room on the disk from Python: what a run loses, in bytes counted by hand, and what having it back takes."""

from pathlib import Path

import pytest

import gradus
from gradus.data.lake.manifest import POINTER, identity_digest
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import pointer, state_identity, state_ref, weights_config
from gradus.tasks.config.settings import Home
from tests.tasks.made_run import RUN, MadeRun

WEIGHTS_BYTES, STATE_BYTES = 1000, 2000


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Ref]:
    """Return three checkpoints of a run; each updates the one before it, and the first updates an imported policy."""
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path))
    run = MadeRun(Home(tmp_path))
    run.policy(0, [])
    made = [Ref("checkpoints", "0" * 32)]
    for at in (1, 2, 3):
        identity = {"stage": "update", "number": at}
        ref = Ref("checkpoints", identity_digest(identity))
        out = run.store.writer(ref)
        out.write_file("model.safetensors", bytes(WEIGHTS_BYTES))
        out.write_file(POINTER, pointer(ref, step=at, optimizer="adamw", threads=1, repeats=True))
        out.commit(identity=identity, parents={"policy": [str(made[-1])]})
        state = run.store.writer(state_ref(ref))
        state.write_file("optimizer.safetensors", bytes(STATE_BYTES))
        state.commit(identity=state_identity(ref), config=weights_config(run.store.manifest(ref).files))
        run.stage("update", at, "train", ref)
        made.append(ref)
    run.finish()
    return made[1:]


def test_a_run_is_pruned_as_foreseen_and_says_what_having_it_back_takes(checkpoints: list[Ref]) -> None:
    run = gradus.run(RUN)
    ahead = gradus.dry_prune(run, keep="last=1")
    weights = [gradus.Artifact(str(ref), run.home.lake, {}).path / "model.safetensors" for ref in checkpoints]
    assert [path.exists() for path in weights] == [True, True, True]
    rows = [(c["round"], c["lost"], c["bytes"], c["updates"], c["seconds"]) for c in ahead["checkpoints"]]
    both = WEIGHTS_BYTES + STATE_BYTES
    assert rows == [(1, "weights, train state", both, 1, 3.0), (2, "weights, train state", both, 2, 6.0)]
    done = gradus.prune(RUN, keep="last=1")
    assert done == {**ahead, "done": True}
    assert (ahead["done"], done["bytes"]) == (False, 2 * both)
    assert [path.exists() for path in weights] == [False, False, True]
    assert gradus.dry_restore(str(checkpoints[2]))["updates"] == 0
    assert gradus.restore(str(checkpoints[2])) == gradus.dry_restore(str(checkpoints[2]))


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda: gradus.prune("nobody"), "there is no run nobody"),
        (lambda: gradus.dry_prune(RUN, keep="first"), "--keep 'first' names no checkpoints"),
        (lambda: gradus.restore("rollouts/00aa11bb"), "rollouts/00aa11bb is no checkpoint"),
        (lambda: gradus.dry_restore("checkpoints/" + "0" * 32), "was not made by an update"),
    ],
)
@pytest.mark.usefixtures("checkpoints")
def test_what_cannot_be_pruned_or_restored_is_refused(act: object, sentence: str) -> None:
    with pytest.raises(gradus.GradusError, match=sentence):
        act()  # type: ignore[operator]
