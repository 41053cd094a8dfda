"""Checkpoints: what is written comes back bit for bit, what does not fit is refused, nothing is pickled."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from gradus.models.policy import load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.checkpoint import write_policy
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.tensor_files import CheckpointError
from tests.models.training.saved import CURSOR, MASTERS, OPTIMIZER, restore_bytes, state_bytes, weights_bytes


def train_state(seed: int = 0, layers: int = 1) -> TrainState:
    policy = new_policy(tiny_tokenizer(), width=16, layers=layers, heads=2, max_positions=32, seed=seed)
    return TrainState(policy.model, StepConfig(lr=1e-2), seed=5)


def trained(steps: int, start: TrainState | None = None) -> TrainState:
    """Steps on a loss that draws from the train state's own random numbers."""
    found = start or train_state()
    for _ in range(steps):
        ids = torch.from_numpy(found.rng.integers(3, 20, (2, 5)))
        found.optimizer.zero_grad()
        found.model(input_ids=ids, labels=ids).loss.backward()
        found.optimizer.step()
        found.step += 1
    return found


def restored(source: TrainState) -> TrainState:
    found = train_state(seed=9)
    restore_bytes(found, state_bytes(source))
    return found


def test_a_restored_train_state_goes_on_bit_for_bit() -> None:
    straight, broken_off = trained(5), restored(trained(2))
    assert broken_off.step == 2
    again = trained(3, broken_off)
    assert weights_bytes(again) == weights_bytes(straight)
    assert state_bytes(again) == state_bytes(straight)
    assert weights_bytes(straight) != weights_bytes(trained(2))


def test_random_numbers_continue_where_they_stood() -> None:
    source = train_state()
    source.rng.integers(0, 10, dtype=np.uint32)  # leaves half of a 64-bit draw behind
    kept = state_bytes(source)
    expected = source.rng.integers(0, 10, 8, dtype=np.uint32).tolist()
    other = TrainState(train_state().model, StepConfig(), seed=77)
    restore_bytes(other, kept)
    assert other.rng.integers(0, 10, 8, dtype=np.uint32).tolist() == expected


def test_a_parameter_that_no_gradient_reached_is_restored_as_untouched() -> None:
    source = train_state()
    frozen = next(source.model.parameters())
    frozen.requires_grad_(False)
    trained(2, source)
    again = restored(source)
    assert next(again.model.parameters()) not in again.optimizer.state
    assert len(again.optimizer.state) == len(again.masters) - 1


def test_every_file_is_plain_json_or_safetensors() -> None:
    source = trained(1)
    files = state_bytes(source)
    assert set(files) == {OPTIMIZER, CURSOR, MASTERS}
    assert json.loads(files[CURSOR]) == {"step": 1, "rng": source.rng.bit_generator.state}
    assert {name.split(".")[0] for name in load(files[OPTIMIZER])} == {"exp_avg", "exp_avg_sq", "step"}


def cursor(step: object, **other: Any) -> bytes:
    """A cursor; fields of a generator's state change that one, others are its own."""
    rng: dict[str, Any] = {**np.random.default_rng(0).bit_generator.state}
    changed = {key: value for key, value in other.items() if key in rng}
    return json.dumps(
        {"step": step, "rng": {**rng, **changed}, **{k: v for k, v in other.items() if k not in rng}}
    ).encode()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (CURSOR, cursor(step=1, epoch=2), "a whole number as step"),
        (CURSOR, cursor(step="1"), "a whole number as step"),
        (CURSOR, cursor(step=True), "a whole number as step"),
        (CURSOR, cursor(step=1, state={"state": 1.5, "inc": 3}), "the state of a PCG64 as rng"),
        (CURSOR, cursor(step=1, state={"state": -1, "inc": 3}), "state.json cannot be read: OverflowError"),
        (CURSOR, cursor(step=1, state={"state": 2**128, "inc": 3}), "state.json cannot be read: OverflowError"),
        (CURSOR, cursor(step=1, bit_generator="MT19937"), "state.json cannot be read: .*PCG64"),
        (CURSOR, b'{"step": 1}', "state.json cannot be read: KeyError"),
        (CURSOR, b"[1]", "state.json cannot be read: TypeError"),
        (CURSOR, b'{"step": 1', "state.json cannot be read: JSONDecodeError"),
        (OPTIMIZER, b"torn", "optimizer.safetensors cannot be read"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(file: str, content: bytes, message: str) -> None:
    target = trained(1)
    before = state_bytes(target)
    with pytest.raises(CheckpointError, match=message):
        restore_bytes(target, {**state_bytes(trained(2)), file: content})
    assert state_bytes(target) == before


def test_fields_missing_unknown_or_of_another_shape_are_named() -> None:
    files = state_bytes(trained(1))
    moments = load(files[OPTIMIZER])
    name = "exp_avg.model.norm.weight"
    lacking = {k: v for k, v in moments.items() if k != name}
    for changed, message in (
        (lacking, f"disagree on {name}: the file lacks it"),
        ({**moments, "exp_avg.more": torch.zeros(1)}, "disagree on exp_avg.more: only the file has it"),
        ({**moments, name: torch.zeros(3)}, rf"{name} has shape \(3,\), expected \(16,\)"),
    ):
        with pytest.raises(CheckpointError, match=message):
            restore_bytes(train_state(), {**files, OPTIMIZER: save(changed)})
    with pytest.raises(CheckpointError, match="disagree on"):
        restore_bytes(train_state(layers=2), state_bytes(train_state()))


def test_a_written_policy_loads_with_the_same_weights(tmp_path: Path) -> None:
    policy = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=32, seed=4)
    folder = tmp_path / "policy"
    folder.mkdir()
    write_policy(policy, folder)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl"))]
    loaded = load_policy(folder, "float32").model
    for (name, before), after in zip(policy.model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(before, after), name
