"""An update without signal: refused alone, skipped in a training, and never mistaken for one that learnt."""

import pytest

from gradus.data.errors import BadInputError, GateError
from gradus.data.lake.manifest import REPORT
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import is_skipped
from gradus.data.records import Json
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.learning import UPDATE, UpdateConfig
from gradus.tasks.runtime.calls import Call, planned
from tests.tasks.stages.update.conftest import House

EQUAL = [1.0] * 4 + [0.0] * 8


def test_a_skipped_update_keeps_the_policy_and_is_refused_wherever_it_is_not_allowed(house: House) -> None:
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, EQUAL)], "policy": [house.policy]}
    folder, report = house.run(house.job(inputs, {"may_skip": True}))
    ref = Ref("checkpoints", folder.name)
    assert {path.name for path in folder.iterdir() if path.is_file()} == {".lock", "_manifest.json", REPORT}
    summary, metrics = report["summary"], report["metrics"]
    assert (summary["updates"], summary["skipped_updates"], summary["groups"], summary["zero_std_groups"]) == (
        0,
        1,
        3,
        3,
    )
    assert (metrics["trained/skipped_updates"], metrics["trained/frac_zero_std_groups"]) == (1.0, 1.0)
    assert is_skipped(house.store, ref)
    assert UPDATE.breach(report, UpdateConfig()) == ""
    with pytest.raises(GateError, match="all 3 groups have rewards without variance: there is nothing to learn from"):
        house.run(house.job(inputs))  # of `gradus update`
    with pytest.raises(BadInputError, match="an update that was skipped, without a policy") as error:
        resolve_artifact(house.store, str(ref), "checkpoints")
    assert error.value.hint == f"give {house.policy}"


def test_the_permission_is_part_of_the_identity_and_the_saving_of_the_state_is_not(house: House) -> None:
    def named(**facts: Json) -> str:
        call = Call("update", UpdateConfig(), {"policy": [house.policy]}, facts=facts)
        return planned(house.store, call, run="", seed=0).output

    assert named(save="never") == named(save="behind") == named()
    assert named(may_skip=True, save="now") == named(may_skip=True) != named()  # none is found by `gradus update`


@pytest.mark.parametrize(
    ("advantage", "learns"),
    [
        ("grpo", False),
        ("dpo", False),  # made at the step, of pairs of unequal rewards
        ("ngrpo", True),  # the groups of wrong rows are below the virtual right one
        ("reinforce_plus_plus", True),  # compares over groups
        ("trpa", True),  # without a pair, right rows are pulled up, wrong ones down
    ],
)
def test_groups_of_equal_rewards_teach_what_compares_with_more_than_the_group(
    house: House, advantage: str, learns: bool
) -> None:
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, EQUAL)], "policy": [house.policy]}
    inputs["reference"] = [house.policy]
    loss = {"loss": "reinforce", "aggregation": "sequence_mean"} if advantage in ("dpo", "trpa") else {}
    _, report = house.run(house.job(inputs, {"may_skip": True}, advantage=advantage, lr=1e-3, **loss))
    assert report["summary"]["updates"] == int(learns)
    assert (report["metrics"].get("policy/grad_norm", 0.0) > 1e-6) is learns
