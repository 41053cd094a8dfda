"""The optimiser of an update by name: through the stage, from disk and warm, and what its settings refuse."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.store import Ref
from gradus.tasks.config.learning import UPDATE, UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity.pins import pinned
from gradus.tasks.preflight.checks import check_stage

House = Any
SGD = {"name": "sgd", "momentum": 0.9}


def then(house: House, first: Path, warm: Warm | None = None, **config: Any) -> Path:
    """An update of the policy that the first one made."""
    policy = Ref("checkpoints", first.name)
    inputs = house.inputs(policy)
    return house.run(house.job(inputs, **config), warm)[0]


@pytest.mark.slow
def test_an_optimizer_with_momentum_continues_from_disk_as_from_memory(house: House) -> None:
    warm = Warm()
    inputs = house.inputs()
    first, _ = house.run(house.job(inputs, **house.steps, optimizer=SGD), warm)
    kept = then(house, first, warm, **house.steps, optimizer=SGD)
    assert house.same_files(kept, then(house, first, **house.steps, optimizer=SGD))
    plain, _ = house.run(house.job(inputs, **house.steps))
    assert not house.same_files(first, plain)


@pytest.mark.parametrize("worker", ["warm", "cold"])
def test_the_state_of_another_optimizer_says_what_to_type(house: House, worker: str) -> None:
    warm = Warm()
    inputs = house.inputs()
    first, _ = house.run(house.job(inputs, optimizer=SGD), warm)
    message = r"the saved state is of sgd, and the optimizer is adamw; set update\.optimizer=sgd; for a fresh"
    with pytest.raises(BadInputError, match=message):
        then(house, first, warm if worker == "warm" else None)
    then(house, first, optimizer=SGD)


def pinned_settings(optimizer: Any) -> dict[str, Any]:
    config = pinned(UpdateConfig.model_validate({"optimizer": optimizer}))
    return {"optimizer": config.model_dump(mode="json")["optimizer"]}


@pytest.mark.slow
def test_an_optimizer_of_the_users_trains_and_continues(house: House, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n\n\ndef ball(parameters, update, *, momentum: float = 0.5):\n"
        "    return torch.optim.SGD(parameters, lr=update.lr, momentum=momentum)\n"
    )
    mine = pinned_settings({"name": f"{file}:ball", "momentum": 0.9})
    first, _ = house.update(house.rows(), house.rewards, **house.steps, **mine)
    ours, _ = house.update(house.rows(), house.rewards, **house.steps, optimizer=SGD)
    assert all(torch.equal(weight, house.weights(ours)[name]) for name, weight in house.weights(first).items())
    again = then(house, first, **house.steps, **mine)
    with_ours = then(house, ours, **house.steps, optimizer=SGD)
    assert all(torch.equal(w, house.weights(with_ours)[name]) for name, w in house.weights(again).items())
    file.write_text("def ball(parameters, update):\n    return 1\n")
    with pytest.raises(BadInputError, match=r"optimizer ball \(mine\.py.*returned int; an optimizer returns a torch"):
        house.update(house.rows(), house.rewards, **pinned_settings(f"{file}:ball"))


def test_a_package_that_is_missing_is_named_before_anything_starts() -> None:
    if find_spec("bitsandbytes") is None:
        with pytest.raises(
            UsageError,
            match=r"adamw_8bit needs the package bitsandbytes, .*; pip install bitsandbytes",
        ):
            check_stage(UPDATE, UpdateConfig.model_validate({"optimizer": "adamw_8bit"}), {})


def test_what_only_the_constructor_knows_is_one_sentence_of_the_worker(house: House) -> None:
    bad = {"name": "sgd", "nesterov": True}
    check_stage(UPDATE, UpdateConfig.model_validate({"optimizer": bad}), {})
    with pytest.raises(BadInputError, match=r"update\.optimizer: the optimizer sgd refuses its settings: Nesterov"):
        house.update(house.rows(), house.rewards, optimizer=bad)


def test_the_usual_optimizer_leaves_identities_as_they_are() -> None:
    assert "optimizer" not in UpdateConfig().identified()
    assert "optimizer" not in UpdateConfig.model_validate({"optimizer": "adamw"}).identified()
    written = UpdateConfig.model_validate({"optimizer": {"name": "sgd", "momentum": 0.5}}).identified()["optimizer"]
    assert written == {"name": "sgd", "momentum": 0.5, "dampening": 0.0, "nesterov": False}
