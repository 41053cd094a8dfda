"""The optimiser of an update by name: through the stage, from disk and warm, and what its settings refuse."""

from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.store import Ref
from gradus.tasks.config.learning import OptimizerConfig, UpdateConfig
from gradus.tasks.config.update import UPDATE
from gradus.tasks.preflight.stages import check_stage
from gradus.tasks.stages.warm import Warm

House = Any
SGD = {"name": "SGD", "settings": {"momentum": 0.9}}


def then(house: House, first: Path, warm: Warm | None = None, **config: Any) -> Path:
    """An update of the policy that the first one made."""
    policy = Ref("checkpoints", first.name)
    rows = house.rows(policy)
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)], "policy": [policy]}
    return house.run(house.job(inputs, **config), warm)[0]


def test_an_optimizer_of_torch_continues_from_disk_as_from_memory(house: House) -> None:
    warm = Warm()
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)], "policy": [house.policy]}
    first, _ = house.run(house.job(inputs, **house.steps, optimizer=SGD), warm)
    kept = then(house, first, warm, **house.steps, optimizer=SGD)
    assert house.same_files(kept, then(house, first, **house.steps, optimizer=SGD))
    plain, _ = house.update(rows, house.rewards, **house.steps)
    assert not house.same_files(first, plain)


@pytest.mark.parametrize("worker", ["warm", "cold"])
def test_the_state_of_another_optimizer_says_what_to_type(house: House, worker: str) -> None:
    warm = Warm()
    rows = house.rows()
    inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)], "policy": [house.policy]}
    first, _ = house.run(house.job(inputs, optimizer=SGD), warm)
    message = r"the saved state is of SGD, and the optimizer is adamw; set update\.optimizer=SGD; for a fresh"
    with pytest.raises(BadInputError, match=message):
        then(house, first, warm if worker == "warm" else None)
    then(house, first, optimizer=SGD)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "Adamw"}, r"update\.optimizer: there is no optimizer Adamw; there are adamw, adamw_8bit"),
        ({"optimizer": {"name": "SGD", "settings": {"momentun": 1}}}, "SGD has no setting momentun; it has momentum"),
        ({"optimizer": "SGD", "betas": (0.5, 0.9)}, r"SGD takes no betas: leave update\.betas out"),
    ],
)
def test_optimizers_that_there_are_not_are_refused_before_anything_starts(
    house: House, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_stage(UPDATE, UpdateConfig.model_validate(settings), {})
    with pytest.raises(BadInputError, match=message):
        house.update(house.rows(), house.rewards, **settings)


def test_what_only_the_constructor_knows_is_one_sentence_of_the_worker(house: House) -> None:
    bad = {"name": "SGD", "settings": {"nesterov": True}}
    check_stage(UPDATE, UpdateConfig.model_validate({"optimizer": bad}), {})
    with pytest.raises(BadInputError, match=r"update\.optimizer: the optimizer SGD refuses its settings: Nesterov"):
        house.update(house.rows(), house.rewards, optimizer=bad)


def test_the_usual_optimizer_leaves_identities_as_they_are() -> None:
    assert "optimizer" not in UpdateConfig().identified()
    assert UpdateConfig(optimizer=OptimizerConfig(name="SGD")).identified()["optimizer"] == {"name": "SGD"}
    assert UpdateConfig.model_validate({"optimizer": "SGD"}).optimizer == OptimizerConfig(name="SGD")
