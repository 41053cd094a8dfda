"""A train state that is not kept is computed again, bit for bit; one that cannot be is refused, never begun anew."""

import json
import math
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Module

from gradus.data.errors import CorruptArtifactError, PrunedError, StageError
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import state_files, state_ref, updates_since_kept
from gradus.tasks.artifacts.resolve import export, resolve_artifact
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import execute
from gradus.tasks.stages.update import train_state
from gradus.tasks.stages.update.replay import restore_checkpoint
from gradus.tasks.stages.update.train_state import KeptTraining
from tests.tasks.stages.update.conftest import House, state_folder

VARIANTS: list[dict[str, Any]] = [
    {},
    {"saved_dtype": "bfloat16"},
    {"ema_decay": 0.5, "optimizer": {"name": "sgd", "momentum": 0.9}},
    {"advantage": "gae", "critic": {"lr": 0.01}},
]


def quiet(_frac: float, _text: str = "") -> None:
    """Nobody watches."""


def chain(
    house: House,
    saves: list[str],
    warm: Callable[[], Warm] = Warm,
    later: dict[str, Any] | None = None,
    **config: Any,
) -> list[Ref]:
    """Run consecutive updates, each of the previous one's policy, those after the first with the settings of `later`;
    return their checkpoints.
    """
    made: list[Ref] = []
    policy = house.policy
    for turn, save in enumerate(saves):
        inputs = house.inputs(policy)
        settings = {**house.steps, "warmup_steps": 5, "weight_decay": 0.1 * turn, "max_logp_diff": 9.0, **config}
        settings |= (later or {}) if turn else {}
        folder, _ = house.run(house.job(inputs, {"save": save}, **settings), warm())
        policy = Ref("checkpoints", folder.name)
        made.append(policy)
    return made


@pytest.mark.parametrize("config", VARIANTS, ids=["plain", "bfloat16", "average", "critic"])
def test_updates_from_states_that_were_not_kept_end_in_the_same_bits(
    new_house: Callable[[str], House], config: dict[str, Any]
) -> None:
    house, other = new_house("kept"), new_house("gone")
    kept, gone = chain(house, ["now"] * 4, **config), chain(other, ["never", "now", "never", "now"], **config)
    assert state_files(other.store, gone[0]) is not None  # computed again for the second
    assert state_files(other.store, gone[2]) is not None
    for first, second in zip(kept, gone, strict=True):
        assert house.same_files(house.store.path(first), other.store.path(second))


def test_a_warm_worker_repeats_nothing_and_writes_a_state_behind(house: House) -> None:
    warm = Warm()
    made = chain(house, ["never", "behind", "never"], lambda: warm)
    warm.of(KeptTraining).finish_saving()
    assert [state_folder(house.store.path(ref)).exists() for ref in made] == [False, True, False]
    assert updates_since_kept(house.store, made[2]) == [made[2]]
    assert updates_since_kept(house.store, made[0]) == [made[0]]


def gone_until_back(model: Module, *_: Any) -> Callable[[], None]:
    """Stands for the move to the host's memory: until it is undone, nothing can be computed with the model."""
    kept = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    with torch.no_grad():
        for parameter in kept:
            parameter.fill_(math.nan)

    def back() -> None:
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)

    return back


def test_where_a_training_stays_between_updates_changes_no_bit(
    new_house: Callable[[str], House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_state, "to_host", gone_until_back)
    house = new_house("cold")
    cold = chain(house, ["now"] * 3)
    for place in ("device", "host", "disk"):
        other, warm = new_house(place), Warm()
        made = chain(other, ["now"] * 3, lambda warm=warm: warm, between_updates=place)
        latest = warm.of(KeptTraining).latest
        assert (latest is None) == (place == "disk")
        assert latest is None or bool(latest.away) == (place == "host")
        for first, second in zip(cold, made, strict=True):
            assert house.same_files(house.store.path(first), other.store.path(second))


def test_a_state_that_could_not_be_written_behind_fails_the_next_update(house: House) -> None:
    warm = Warm()

    def full() -> None:
        raise OSError(28, "No space left on device", str(house.store.root))

    (made,) = chain(house, ["never"], lambda: warm)
    warm.of(KeptTraining).save_behind(full)
    inputs = house.inputs(made)
    with pytest.raises(StageError, match="the last update's train state was not kept: the disk is full"):
        house.run(house.job(inputs), warm)
    house.run(house.job(inputs), warm)


@pytest.mark.parametrize(
    "later", [{}, VARIANTS[3], {"dtype": "bfloat16"}], ids=["", "a critic begins later", "another dtype later"]
)
def test_pruned_weights_and_state_come_back_with_their_own_bits(house: House, later: dict[str, Any]) -> None:
    made = chain(house, ["now"] * 3, later=later)
    folder = house.store.path(made[1])
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    states = {path.name: path.read_bytes() for path in state_folder(folder).iterdir() if path.is_file()}
    for ref in made[:2]:
        (house.store.path(ref) / "model.safetensors").unlink()
        shutil.rmtree(house.store.path(state_ref(ref)))
    assert house.store.find(made[1]) is not None  # still known, and finished
    with pytest.raises(PrunedError, match=r"model\.safetensors of .* was pruned on 20\d\d-\d\d-\d\d; `gradus re"):
        house.store.verify(made[1])
    texts: list[str] = []
    restore_checkpoint(house.store, made[1], lambda _frac, text="": texts.append(text))
    assert texts[0].startswith("repeating update 1 of 2:")
    assert texts[-1].startswith("repeating update 2 of 2:")
    assert house.store.pruned(made[1]) == frozenset()
    house.store.verify(made[1])
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert {p.name: p.read_bytes() for p in state_folder(folder).iterdir() if p.is_file()} == states
    # What was repeated on the way stays pruned, unless another number format follows: that begins with files.
    assert bool(house.store.pruned(made[0])) == ("dtype" not in later)


def test_an_update_is_repeated_with_the_threads_that_it_had(house: House) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        (made,) = chain(house, ["never"])
    finally:
        torch.set_num_threads(before)
    threads: set[int] = set()
    restore_checkpoint(house.store, made, lambda _frac, _text="": threads.add(torch.get_num_threads()))
    assert threads == {before + 1}
    assert torch.get_num_threads() == before


def test_an_update_that_does_not_make_the_same_bits_again_is_refused(house: House) -> None:
    (made,) = chain(house, ["never"])
    folder = house.store.path(made)
    manifest = json.loads((folder / "_manifest.json").read_text())
    altered = {**manifest, "config": {**manifest["config"], "lr": 2e-2}}
    house.store.discard(made)
    out = house.store.writer(made)
    job = house.job({role: list(map(Ref.parse, refs)) for role, refs in manifest["parents"].items()}, {"save": "never"})
    shutil.rmtree(out.folder)
    execute(
        {**job, "output": str(made), "identity": manifest["identity"], "config": {**manifest["config"]}}, Warm(), quiet
    )
    out = house.store.writer(made)
    for entry in house.store.manifest(made).files:
        out.copy_file(entry.name, folder / entry.name)
    out.commit(identity=manifest["identity"], config=altered["config"], parents=manifest["parents"])
    with pytest.raises(StageError, match=r"ended in another model\.safetensors.*for a fresh optimiser train what"):
        restore_checkpoint(house.store, made, quiet)
    assert state_files(house.store, made) is None
    assert not house.store.path(state_ref(made)).exists()


def test_a_copy_whose_state_is_gone_is_never_begun_anew(house: House, tmp_path: Path) -> None:
    (made,) = chain(house, ["never"])
    shutil.copytree(house.store.path(made), tmp_path / "copy", ignore=shutil.ignore_patterns("_*", ".*"))
    house.policy = house.store.adopt(tmp_path / "copy")
    rows = house.rows()
    with pytest.raises(StageError, match=r"is gone, and checkpoints/.*, a copy from elsewhere, does not have here"):
        house.update(rows, house.rewards)


def test_a_state_that_cannot_be_computed_again_is_not_given_up(house: House) -> None:
    first, second = chain(house, ["now", "now"])
    copy = house.store.adopt(house.store.path(second))  # with a train state by its pointer, and without parents
    (house.store.path(copy) / "model.safetensors").unlink()
    before = {path.name: path.read_bytes() for path in state_folder(house.store.path(second)).glob("[a-z]*")}
    with pytest.raises(StageError, match="a copy from elsewhere"):
        restore_checkpoint(house.store, copy, quiet)
    (house.store.path(second) / "model.safetensors").unlink()
    shutil.rmtree(house.store.path(first))
    with pytest.raises(StageError, match="a copy from elsewhere"):
        restore_checkpoint(house.store, second, quiet)
    assert {p.name: p.read_bytes() for p in state_folder(house.store.path(second)).glob("[a-z]*")} == before


@pytest.mark.parametrize("way", ["taken out", "in another lake"])
def test_a_checkpoint_of_another_lake_goes_on_with_its_train_state(
    new_house: Callable[[str], House], tmp_path: Path, way: str
) -> None:
    house, other = new_house("here"), new_house("there")
    first, second = chain(house, ["now", "now"])
    folder = export(house.store, first, tmp_path / "out") if way == "taken out" else house.store.path(first)
    assert resolve_artifact(other.store, str(folder), "checkpoints") == first
    other.runs = 9  # jobs are named by their number, and this one makes another checkpoint
    rows = house.rows(first)
    inputs = {"rollouts": [other.put(rows)], "scores": [other.score(rows, other.rewards)], "policy": [first]}
    settings = {**house.steps, "warmup_steps": 5, "weight_decay": 0.1, "max_logp_diff": 9.0}
    found, _ = other.run(other.job(inputs, **settings))
    assert house.same_files(found, house.store.path(second))


def test_a_pruned_copy_has_nothing_to_be_computed_from(new_house: Callable[[str], House], tmp_path: Path) -> None:
    house, other = new_house("here"), new_house("there")
    _, second = chain(house, ["never", "never"])
    copy = export(house.store, second, tmp_path / "out")
    assert resolve_artifact(other.store, str(copy), "checkpoints") == second
    with pytest.raises(StageError, match=r"a copy from elsewhere, does not have here what it was made from"):
        restore_checkpoint(other.store, second, quiet)


def test_inputs_that_are_gone_are_named(house: House) -> None:
    (made,) = chain(house, ["never"])
    (text,) = house.store.manifest(made).parents["rollouts"]
    shutil.rmtree(house.store.path(Ref.parse(text)))
    with pytest.raises(CorruptArtifactError, match=r"cannot be computed again: .*rollouts"):
        restore_checkpoint(house.store, made, quiet)


@pytest.mark.parametrize("save", ["now", "never"], ids=["while the state is written", "while weights are written"])
def test_a_disk_that_takes_no_more_is_a_sentence_and_costs_the_attempt_alone(house: House, save: str) -> None:
    inputs = house.inputs()
    weights_bytes = (house.store.path(house.policy) / "model.safetensors").stat().st_size
    job = house.job(inputs, {"save": save})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit_bytes = weights_bytes + 1000 if save == "now" else weights_bytes // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        with pytest.raises(StageError, match=r"cannot be written: .*; make room"):
            house.run(job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert house.store.find(Ref.parse(job["output"])) is None
    folder, _ = house.run(job)
    assert house.same_files(folder, house.run(house.job(inputs))[0]) if save == "now" else folder.is_dir()
