"""An update without signal: refused alone, skipped in a training, and never mistaken for one that learnt."""

import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.manifest import REPORT
from gradus.data.lake.store import Ref
from gradus.data.lake.train_states import is_skipped
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.gates import breach
from tests.tasks.stages.update.conftest import House

EQUAL = [1.0] * 4 + [0.0] * 8


def test_a_skipped_update_keeps_the_policy_and_is_refused_wherever_it_is_not_allowed(house: House) -> None:
    folder, report = house.update(house.rows(), EQUAL, without_signal="skipped")
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
    assert breach("update", report, UpdateConfig(without_signal="skipped")) == ""
    sentence = "all 3 groups have rewards without variance: there is nothing to learn from"
    assert breach("update", report, UpdateConfig()) == sentence  # the same artifact, found by `gradus update`
    with pytest.raises(BadInputError, match="an update that was skipped, without a policy") as error:
        resolve_artifact(house.store, str(ref), "checkpoints")
    assert error.value.hint == f"give {house.policy}"


def test_the_setting_is_a_limit_that_changes_no_identity() -> None:
    assert UpdateConfig(without_signal="skipped").identified() == UpdateConfig().identified()
