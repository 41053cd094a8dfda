"""Optimisers by name on the bundled policy: what they keep, and what is refused."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load, save

from gradus.components.chosen import OptimizerConfig
from gradus.models.policy import load_policy
from gradus.models.training.optimizers.making import OptimizerError, blank_state
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.tensor_files import CheckpointError
from gradus.models.training.train_state_files import OtherOptimizerError
from tests.models.training.saved import OPTIMIZER, restore_bytes, state_bytes, weights_bytes


def chosen(name: str = "adamw", **settings: Any) -> OptimizerConfig:
    return OptimizerConfig.model_validate({"name": name, **settings})


BUNDLED = Path(__file__).parents[3] / "data" / "samples" / "policy"
needs_bitsandbytes = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
CHOICES: list[Any] = [
    *(chosen(), chosen(amsgrad=True), chosen("sgd"), chosen("sgd", momentum=0.9, nesterov=True)),
    pytest.param(chosen("adamw_8bit"), marks=needs_bitsandbytes),
]


def name_of(choice: OptimizerConfig) -> str:
    return f"{choice.name} {choice.settings}"


def train_state(choice: OptimizerConfig, dtype: Any = "float32", **settings: Any) -> TrainState:
    model = load_policy(BUNDLED, dtype).model
    return TrainState(model, StepConfig(lr=1e-3, optimizer=choice, **settings), 5)


def stepped(found: TrainState, seeds: range) -> TrainState:
    for seed in seeds:
        ids = torch.randint(3, 20, (4, 9), generator=torch.Generator().manual_seed(seed))
        found.model(input_ids=ids, labels=ids).loss.backward()
        found.advance()
        found.optimizer.zero_grad()
        found.step += 1
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_every_optimizer_learns_and_continues_bit_for_bit(choice: OptimizerConfig, dtype: str) -> None:
    before = weights_bytes(train_state(choice, dtype))
    straight, half = stepped(train_state(choice, dtype), range(4)), stepped(train_state(choice, dtype), range(2))
    again = train_state(choice, dtype)
    restore_bytes(again, state_bytes(half))
    assert weights_bytes(again) != before
    assert state_bytes(again) == state_bytes(half)
    stepped(again, range(2, 4))
    assert weights_bytes(again) == weights_bytes(straight)
    assert state_bytes(again) == state_bytes(straight)


@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_a_blank_state_has_the_keys_and_shapes_of_a_real_one_and_changes_nothing(choice: OptimizerConfig) -> None:
    found = stepped(train_state(choice), range(1))
    state, weights, rates = state_bytes(found), weights_bytes(found), found.optimizer.param_groups[0]["lr"]
    blank = blank_state(found.optimizer)
    assert (state_bytes(found), weights_bytes(found), found.optimizer.param_groups[0]["lr"]) == (
        state,
        weights,
        rates,
    )
    for master, entry in found.optimizer.state.items():
        assert entry.keys() == blank[master].keys()
        for key, value in entry.items():
            assert getattr(value, "shape", None) == getattr(blank[master][key], "shape", None)
            assert type(value) is type(blank[master][key])


def test_sgd_without_momentum_is_the_formula() -> None:
    found = train_state(chosen("sgd"))
    before = {name: master.detach().clone() for name, master in found.masters.items()}
    ids = torch.randint(3, 20, (4, 9), generator=torch.Generator().manual_seed(0))
    found.model(input_ids=ids, labels=ids).loss.backward()
    gradients = {name: m.grad.clone() for name, m in found.masters.items() if m.grad is not None}
    found.advance()
    for name, master in found.masters.items():
        assert torch.allclose(master.detach(), before[name] - 1e-3 * gradients[name], rtol=0, atol=3e-8), (
            name
        )  # a bit of float32


@needs_bitsandbytes
def test_the_8bit_state_is_a_quarter_and_steps_nearly_as_adamw_does() -> None:
    eight, exact = (stepped(train_state(chosen(n)), range(8)) for n in ("adamw_8bit", "adamw"))
    sizes = [len(state_bytes(each)[OPTIMIZER]) for each in (eight, exact)]
    assert sizes[0] < 0.3 * sizes[1]
    moved = [
        torch.cat([(m - p).detach().flatten() for m, p in zip(each.masters.values(), start.parameters(), strict=True)])
        for each, start in ((eight, load_policy(BUNDLED, "float32").model), (exact, load_policy(BUNDLED).model))
    ]
    assert float(torch.cosine_similarity(*moved, dim=0)) > 0.95


def test_adamw_keeps_the_tensors_that_it_has_always_kept() -> None:
    content = state_bytes(stepped(train_state(chosen()), range(1)))[OPTIMIZER]
    assert {name.split(".")[0] for name in load(content)} == {"exp_avg", "exp_avg_sq", "step"}
    assert "__metadata__" not in json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


@pytest.mark.parametrize(
    ("saved", "wanted", "message"),
    [
        ("sgd", "adamw", r"the saved state is of sgd, and the optimizer is adamw"),
        ("adamw", "sgd", r"the saved state is of adamw, and the optimizer is sgd"),
    ],
)
def test_the_state_of_another_optimizer_is_refused(saved: str, wanted: str, message: str) -> None:
    files = state_bytes(stepped(train_state(chosen(saved)), range(1)))
    with pytest.raises(OtherOptimizerError, match=message):
        restore_bytes(train_state(chosen(wanted)), files)


def test_tensors_missing_unknown_or_of_another_shape_are_named_with_the_optimizer() -> None:
    choice = chosen("sgd", momentum=0.9)
    files = state_bytes(stepped(train_state(choice), range(1)))
    tensors, name = load(files[OPTIMIZER]), "momentum_buffer.model.norm.weight"
    for changed, message in (
        (
            {**tensors, "exp_avg.more": torch.zeros(1)},
            r"optimizer\.safetensors of sgd and the model disagree on exp_avg\.more",
        ),
        (
            {**tensors, name: torch.zeros(3)},
            rf"optimizer\.safetensors of sgd: {name} has shape \(3,\), expected \(128,\)",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            restore_bytes(train_state(choice), {**files, OPTIMIZER: save(changed, {"optimizer": "sgd"})})
    with pytest.raises(CheckpointError, match=r"sgd and the model disagree on momentum_buffer.*only the file has it"):
        restore_bytes(train_state(chosen("sgd")), files)


@pytest.mark.parametrize(
    ("choice", "settings", "message"),
    [
        (chosen("sgd", nesterov=True), {}, "Nesterov momentum requires a momentum"),
        (chosen("sgd"), {"betas": (0.5, 0.9)}, r"it takes no betas: leave update\.betas out"),
    ],
)
def test_what_a_constructor_refuses_is_one_sentence(
    choice: OptimizerConfig, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptimizerError, match=f"the optimizer sgd refuses its settings: {message}"):
        train_state(choice, **settings)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("Adafactor", "there is no optimizer 'Adafactor'"),
        ({"name": "sgd", "momentun": 1}, "optimizer sgd has no such setting"),
        ({"name": "sgd", "momentum": -1.0}, "greater than or equal to 0"),
    ],
)
def test_what_is_no_optimizer_or_no_setting_of_it_is_refused(written: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StepConfig.model_validate({"optimizer": written})


def test_other_weight_decay_and_betas_hold_from_the_next_update_on() -> None:
    found = train_state(chosen())
    found.adopt(StepConfig(betas=(0.5, 0.6), weight_decay=0.25))
    assert [(group["betas"], group["weight_decay"]) for group in found.optimizer.param_groups] == [((0.5, 0.6), 0.25)]
