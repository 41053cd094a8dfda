"""bfloat16 with float32 master weights: what moves, what is rounded, what is written; the bundled policy."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file
from torch import Tensor

from gradus.models.policy import Policy, load_policy, new_policy, saved_dtype
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.checkpoint import SavedDtype, write_policy
from gradus.models.training.packed.forward import form_of
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.tensor_files import CheckpointError
from tests.models.training.saved import restore_bytes, state_bytes, weights_bytes

BUNDLED = Path(__file__).parents[3] / "data" / "samples" / "policy"


def mixed(lr: float = 1e-3) -> TrainState:
    """The bundled policy in bfloat16 with the masters that it was rounded from."""
    exact, narrow = load_policy(BUNDLED, "float32").model, load_policy(BUNDLED, "bfloat16").model
    return TrainState(narrow, StepConfig(lr=lr), 5, dict(exact.named_parameters()))


def backward(found: TrainState, seed: int) -> None:
    ids = torch.randint(3, 20, (4, 9), generator=torch.Generator().manual_seed(seed))
    found.model(input_ids=ids, labels=ids).loss.backward()


def stepped(found: TrainState, seeds: range) -> TrainState:
    for seed in seeds:
        backward(found, seed)
        found.advance()
        found.optimizer.zero_grad()
    return found


def test_a_float32_model_is_its_own_master() -> None:
    model = load_policy(BUNDLED, "float32").model
    found = TrainState(model, StepConfig(), 0)
    own = dict(model.named_parameters())
    assert found.masters.keys() == own.keys()
    assert all(found.masters[name] is own[name] for name in own)


def test_masters_move_by_less_than_bfloat16_can_hold_and_add_up() -> None:
    """Next to 1, bfloat16 has no number between 1 and 1 + 2^-7; steps of 2^-10 must add up to one of them."""
    exact = load_policy(BUNDLED, "float32").model
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.fill_(1.0)
    narrow = load_policy(BUNDLED, "bfloat16").model
    settings = StepConfig(lr=2**-10, weight_decay=0.0)
    found = TrainState(narrow, settings, 0, dict(exact.named_parameters()))
    found.write_back()
    weight, master = narrow.model.norm.weight, found.masters["model.norm.weight"]
    seen: list[float] = []
    for _ in range(8):
        for other in found.masters.values():
            other.grad = -torch.ones_like(other)  # AdamW then steps by lr
        found.advance()
        seen.append(float(weight.detach()[0]))
    assert float(master.detach()[0]) == pytest.approx(1 + 8 * 2**-10, abs=1e-5)
    assert seen[0] == seen[1] == seen[2] == 1.0
    assert seen[-1] == 1 + 2**-7
    assert weight.dtype == torch.bfloat16


@pytest.mark.slow
def test_gradients_of_micro_batches_are_summed_in_float32() -> None:
    """Against the sum, in float64, of gradients taken one at a time."""
    found, alone = mixed(), mixed()
    parts: list[dict[str, Tensor]] = []
    for seed in range(16):
        backward(found, seed)
        backward(alone, seed)
        parts.append({name: m.grad.double() for name, m in alone.masters.items() if m.grad is not None})
        alone.optimizer.zero_grad()
    assert len(parts[0]) == len(found.masters)
    for name, master in found.masters.items():
        expected = torch.stack([part[name] for part in parts]).sum(0)
        assert master.grad is not None
        assert master.grad.dtype == torch.float32
        assert torch.allclose(master.grad.double(), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert all(parameter.grad is None for parameter in found.model.parameters())


def test_the_direction_of_a_bfloat16_gradient_is_that_of_float32() -> None:
    found, exact = mixed(), TrainState(load_policy(BUNDLED, "float32").model, StepConfig(), 5)
    backward(found, 1)
    backward(exact, 1)
    ours, theirs = (
        torch.cat([m.grad.flatten() for m in each.masters.values() if m.grad is not None]) for each in (found, exact)
    )
    assert float(torch.cosine_similarity(ours, theirs, dim=0)) > 0.999
    assert not torch.equal(ours, theirs)


def test_the_packed_form_is_taken_in_bfloat16_too() -> None:
    assert form_of(mixed().model) == "packed"


@pytest.mark.slow
def test_a_restored_train_state_continues_from_the_masters_bit_for_bit() -> None:
    straight = stepped(mixed(lr=1e-5), range(6))
    half = stepped(mixed(lr=1e-5), range(3))
    again = mixed(lr=1e-5)
    restore_bytes(again, state_bytes(half))
    stepped(again, range(3, 6))
    assert weights_bytes(again) == weights_bytes(straight)
    assert state_bytes(again) == state_bytes(straight)
    for name, parameter in again.model.named_parameters():
        assert torch.equal(parameter, straight.masters[name].to(torch.bfloat16)), name
    rounded = {name: p.float() for name, p in half.model.named_parameters()}
    assert any(not torch.equal(rounded[name], half.masters[name]) for name in rounded)


def written(policy: Policy, folder: Path, state: TrainState | None, dtype: SavedDtype | None) -> Path:
    folder.mkdir(parents=True)
    write_policy(policy, folder, None if state is None else state.masters, dtype)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_saved_in_the_number_format_asked_for(tmp_path: Path, dtype: SavedDtype) -> None:
    policy = load_policy(BUNDLED, "bfloat16")
    state = mixed()
    folder = written(Policy(state.model, policy.tokenizer), tmp_path / dtype, stepped(state, range(2)), dtype)
    assert json.loads((folder / "config.json").read_text())["dtype"] == dtype == saved_dtype(folder)
    saved = load_file(folder / "model.safetensors")
    assert {str(tensor.dtype) for tensor in saved.values()} == {f"torch.{dtype}"}
    for name, tensor in saved.items():
        assert torch.equal(tensor, state.masters[name].to(tensor.dtype)), name
    again = load_policy(folder).model
    assert str(again.dtype) == f"torch.{dtype}"
    assert len(dict(again.named_parameters())) == len(state.masters)


def test_a_float32_policy_keeps_the_bytes_that_transformers_writes(tmp_path: Path) -> None:
    policy = load_policy(BUNDLED, "float32")
    policy.model.save_pretrained(tmp_path / "theirs")
    state = TrainState(policy.model, StepConfig(), 0)
    for number, given in enumerate((None, state)):
        ours = written(policy, tmp_path / str(number), given, "float32" if given else None)
        for name in ("config.json", "model.safetensors", "generation_config.json"):
            assert (ours / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


def test_parts_of_a_configuration_name_the_format_too(tmp_path: Path) -> None:
    policy = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=32, seed=4)
    policy.model.config.text_settings = {"dtype": "float32", "depth": 2}
    state = TrainState(policy.model, StepConfig(), 0)
    body = json.loads((written(policy, tmp_path / "p", state, "bfloat16") / "config.json").read_text())
    assert body["text_settings"] == {"dtype": "bfloat16", "depth": 2}


def test_masters_of_other_weights_are_refused() -> None:
    state = stepped(mixed(), range(2))
    loaded = TrainState(load_policy(BUNDLED, "float32").model, StepConfig(), 0)
    before = weights_bytes(loaded)
    with pytest.raises(CheckpointError, match=r"masters\.safetensors is not what the policy's .* was rounded from"):
        restore_bytes(loaded, state_bytes(state), "bfloat16")
    assert weights_bytes(loaded) == before
    with torch.no_grad():
        for name, master in loaded.masters.items():
            master.copy_(state.masters[name].to(torch.bfloat16))
    restore_bytes(loaded, state_bytes(state), "bfloat16")
    found = load(weights_bytes(loaded))
    assert all(torch.equal(found[name], master) for name, master in state.masters.items())


def test_a_gradient_that_a_failed_pass_left_behind_counts_nowhere() -> None:
    calm, disturbed = mixed(), mixed()
    for parameter in disturbed.model.parameters():
        parameter.grad = torch.ones_like(parameter)  # as if memory ran out before it was moved
    for each in (calm, disturbed):
        each.zero_grad()
        backward(each, 0)
    for name, master in calm.masters.items():
        other = disturbed.masters[name]
        assert master.grad is not None
        assert other.grad is not None
        assert torch.equal(other.grad, master.grad), name
