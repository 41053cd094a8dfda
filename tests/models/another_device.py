"""Policies on another device than the CPU: the same numbers but for rounding, and no tensor left behind.

Run by test_devices.py in a process of its own, since PyTorch keeps a device that it was told of. The device is a GPU,
or a stand-in that computes on the CPU (elsewhere.py), by other kernels here and there.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from gradus.models.adapters import proof_of_merged, read_adapter
from gradus.models.devices import to_host
from gradus.models.engines.base import Finished, Request
from gradus.models.engines.hf import HfEngine
from gradus.models.objectives.corrections.truncated import token_truncated
from gradus.models.objectives.ragged import Ragged
from gradus.models.objectives.rows import Rows
from gradus.models.policy import Policy, load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.learning_rows import learning_rows, mismatch
from gradus.models.training.lora import add_lora
from gradus.models.training.packed.forward import form_of
from gradus.models.training.packed.logprobs import Asked, _compiled, _of_logits, token_logprobs
from gradus.models.training.packed.packing import pack_of
from gradus.models.training.settings import FinetuneConfig, LoraConfig
from gradus.models.training.state import TrainState
from gradus.models.training.warmstart import Example, finetune
from gradus.models.weight_check import verify_weights
from tests.models.elsewhere import elsewhere
from tests.models.training.saved import CURSOR, OPTIMIZER, restore_bytes, state_bytes, weights_bytes
from tests.models.training.trial import Trial, all_logprobs, optimised

# torch.compile imports a module of PyTorch that uses what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

SETTINGS = Trial(
    lr=1e-3, epochs=2, minibatch_groups=1, micro_tokens=12, kl_coef=0.1, entropy_coef=0.01, correction=token_truncated
)


def policy(seed: int = 3, there: torch.device | None = None) -> Policy:
    found = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=96, seed=seed)
    # PyTorch's fused attention knows none but its own devices.
    found.model.set_attn_implementation("eager")
    if there is not None:
        torch.nn.Module.to(found.model, there)
        found.model.tie_weights()
    return found


@pytest.fixture
def there() -> Iterator[torch.device]:
    """The device to test, which the environment names."""
    if os.environ["GRADUS_TEST_DEVICE"] == "cuda":
        yield torch.device("cuda", 0)
    else:
        # Parameters of the stand-in are made anew when they move, unless PyTorch swaps what they hold.
        torch.__future__.set_swap_module_params_on_conversion(True)
        with elsewhere() as device:
            yield device


def requests() -> list[Request]:
    prompts = [(9, 12, 5), (9, 12, 5), (10, 11), (9, 6, 13, 5, 8), (9, 12, 5), (10, 11)]
    ways = [(1.0, 1.0, 0), (0.7, 0.9, 0), (0.0, 1.0, 0), (1.0, 1.0, 4), (1.0, 0.8, 9), (1.3, 1.0, 0)]
    return [
        Request(str(i), prompt, seed=i, max_tokens=30 - 4 * i, temperature=temperature, top_p=top_p, top_k=top_k)
        for i, (prompt, (temperature, top_p, top_k)) in enumerate(zip(prompts, ways, strict=True))
    ]


def close(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-4, abs=1e-6)


def hold(ours: bytes, expected: bytes) -> None:
    """Raise AssertionError if tensors of two files differ by more than rounding explains.

    The gradient of a key's bias is 0 but for rounding, of which AdamW makes up to a hundredth of a step (1e-3).
    """
    torch.testing.assert_close(load(ours), load(expected), rtol=1e-3, atol=1e-5)


def by_index(finished: list[Finished]) -> list[Finished]:
    return sorted(finished, key=lambda f: f.index)


def rollouts() -> Rows:
    return learning_rows(
        prompts=Ragged.of([[9, 12], [9, 12], [5, 6, 7], [5, 6, 7]]),
        completions=Ragged.of([[9, 10, 1], [11, 1], [12, 13, 14, 1], [9, 1]]),
        logprobs=torch.full((11,), -3.0),
        temperature=torch.tensor([1.0, 1.0, 0.7, 0.7]),
        advantage=torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64),
        group=torch.tensor([0, 0, 1, 1]),
        reward=torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64),
        correct=torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64),
    )


def updated(start: Policy, rows: Rows, reference: Policy) -> tuple[TrainState, list[dict[str, float]]]:
    train_state = TrainState(start.model, SETTINGS.settings, seed=1)
    old, ref = (all_logprobs(each.model, rows, SETTINGS.micro_tokens) for each in (start, reference))
    steps = optimised(train_state, rows, SETTINGS, {"old.logp": old, "reference.logp": ref})
    return train_state, [mismatch(rows, old), *(step.metrics for step in steps)]


def test_tensors_of_two_devices_are_refused(there: torch.device) -> None:
    assert torch.ones(2, device=there).device == there
    with pytest.raises(RuntimeError, match=r"two devices|same device"):
        torch.ones(2, device=there) + torch.ones(2)
    with pytest.raises(RuntimeError, match=r"two devices|same device"):
        torch.where(torch.ones(2, dtype=torch.bool), torch.ones(2, device=there), 0.0)


@pytest.mark.parametrize("batch_rows", [6, 2])
def test_the_embedded_engine_samples_there_what_it_samples_here(there: torch.device, batch_rows: int) -> None:
    here = by_index(list(HfEngine(policy(), batch_rows=batch_rows).generate(requests())))
    engine = HfEngine(policy(there=there), batch_rows=batch_rows)
    for moved, stayed in zip(by_index(list(engine.generate(requests()))), here, strict=True):
        assert replace(moved, logprobs=[]) == replace(stayed, logprobs=[])
        assert moved.logprobs == close(stayed.logprobs)
    assert len({len(finished.tokens) for finished in here}) > 2  # rows have left the batch
    assert engine.logprobs([9, 12], [5, 6]) == close(HfEngine(policy()).logprobs([9, 12], [5, 6]))
    assert not engine.reproducible


def test_an_update_there_is_the_update_here(there: torch.device) -> None:
    train_state, log = updated(policy(), rollouts(), policy(seed=4))
    moved, moved_log = updated(policy(there=there), rollouts(), policy(seed=4, there=there))
    assert {parameter.device for parameter in moved.model.parameters()} == {there}
    assert len(log) == 5
    for ours, expected in zip(moved_log, log, strict=True):
        assert ours == close(expected)
    hold(weights_bytes(moved), weights_bytes(train_state))
    ours, expected = state_bytes(moved), state_bytes(train_state)
    hold(ours[OPTIMIZER], expected[OPTIMIZER])
    assert ours[CURSOR] == expected[CURSOR]


def test_what_is_asked_of_the_vocabulary_there_is_what_it_is_here(there: torch.device) -> None:
    """On a GPU the pass over the vocabulary is compiled."""
    candidates = torch.tensor([[3, 4]] * 11)
    asked = Asked(True, candidates, top_k=3, top_below=9, logsumexp=True, mean_logp=True, at_1=True, head=True)
    found: list[list[torch.Tensor]] = []
    for model in (policy().model, policy(there=there).model):
        rows = rollouts()
        pack = pack_of(torch.arange(4), rows["prompt.number"], rows["prompt"], rows["completion"])
        values = token_logprobs(model, pack, rows["temperature"], form_of(model), asked)
        had = [each for each in values if each is not None]
        loss = sum(
            (each * torch.arange(11.0).view(11, *[1] * (each.dim() - 1))).sum() for each in had if each.requires_grad
        )
        loss.backward()
        found.append([*had, *(p.grad.cpu() for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 12
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert (_compiled(there.type) is _of_logits) == (there.type != "cuda")


def test_an_update_of_an_adapter_there_is_the_one_here(there: torch.device) -> None:
    """A first step moves B alone, so the second step, in which A moves too, says more."""
    states: list[TrainState] = []
    logs: list[list[dict[str, float]]] = []
    for start, reference in ((policy(), policy(seed=4)), (policy(there=there), policy(seed=4, there=there))):
        add_lora(start.model, LoraConfig(rank=3), seed=1)
        train_state, log = updated(start, rollouts(), reference)
        states.append(train_state)
        logs.append(log)
    stayed, moved = states
    assert {parameter.device for parameter in moved.model.parameters()} == {there}
    assert len(moved.masters) == 2 * 7 * 2
    for ours, expected in zip(logs[1], logs[0], strict=True):
        assert ours == close(expected)
    hold(weights_bytes(moved), weights_bytes(stayed))


def test_a_train_state_goes_on_there_from_what_was_saved_here(there: torch.device) -> None:
    train_state, _ = updated(policy(), rollouts(), policy(seed=4))
    state, weights = state_bytes(train_state), weights_bytes(train_state)
    rows = rollouts().adding({"advantage": torch.tensor([-1.0, 1.0, 0.25, -0.5], dtype=torch.float64)})
    moved = TrainState(policy(there=there).model, SETTINGS.settings, seed=1)
    restore_bytes(moved, state)
    assert weights_bytes(moved) == weights
    for one in (train_state, moved):
        old = all_logprobs(one.model, rows, SETTINGS.micro_tokens)
        optimised(one, rows, SETTINGS, {"old.logp": old, "reference.logp": old})
    hold(weights_bytes(moved), weights_bytes(train_state))
    with pytest.raises(AssertionError):
        hold(weights_bytes(moved), weights)


def test_a_training_that_left_for_the_host_comes_back_whole(there: torch.device) -> None:
    rows = rollouts().adding({"advantage": torch.tensor([-1.0, 1.0, 0.25, -0.5], dtype=torch.float64)})
    states: list[TrainState] = []
    for leaves in (False, True):
        state, _ = updated(policy(there=there), rollouts(), policy(seed=4, there=there))
        state.adopt(replace(SETTINGS, ema_decay=0.5).settings)
        if leaves:
            before, devices = state_bytes(state), tensors(state)
            back = to_host(state.model, state.optimizer, [state.average])
            assert {tensor.device.type for tensor in tensors(state)} == {"cpu"}
            assert state_bytes(state) == before
            back()
            assert [t.device for t in tensors(state)] == [t.device for t in devices]
            assert state_bytes(state) == before
        old = all_logprobs(state.model, rows, SETTINGS.micro_tokens)
        optimised(state, rows, SETTINGS, {"old.logp": old, "reference.logp": old})
        states.append(state)
    stayed, left = map(state_bytes, states)
    assert len(left) == len(stayed) > 3
    for name in stayed:
        if name.endswith(".safetensors"):
            hold(left[name], stayed[name])


def tensors(state: TrainState) -> list[torch.Tensor]:
    """Everything that a training keeps on its device, and AdamW's counters of steps, which may lie elsewhere."""
    kept = [tensor for entry in state.optimizer.state.values() for tensor in entry.values()]
    return [*state.model.parameters(), *state.model.buffers(), *state.masters.values(), *kept, *state.average.values()]


def test_supervised_training_there_is_that_here(there: torch.device) -> None:
    examples = [Example((9, 12), (5, 6, 1)), Example((8,), (7, 1)), Example((5, 5, 5), (9, 1))]
    settings = FinetuneConfig(steps=3, batch_rows=4, lr=1e-3, warmup_steps=1, decay_steps=0)
    losses = [
        finetune(one.model, examples, settings, np.random.default_rng(2), lambda _step, _loss: None)
        for one in (policy(), policy(there=there))
    ]
    assert losses[0] == close(losses[1])


def test_weights_there_are_held_against_the_files(there: torch.device, tmp_path: Path) -> None:
    saved = policy()
    saved.model.save_pretrained(tmp_path)
    saved.tokenizer.save_pretrained(tmp_path)
    assert verify_weights(dict(policy(there=there).model.state_dict()), tmp_path) > 10
    with pytest.raises(ValueError, match="tensors are not those"):
        verify_weights(dict(policy(seed=5, there=there).model.state_dict()), tmp_path)
    if there.type == "cuda":
        assert load_policy(tmp_path, device=there).model.device == there


def test_merged_weights_there_are_held_against_base_and_adapter(
    there: torch.device, tmp_path: Path, make_adapter: Any
) -> None:
    base = policy()
    base.model.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    adapters = [make_adapter(tmp_path / f"adapter{seed}", base, str(tmp_path / "base"), seed=seed) for seed in (1, 2)]
    merged = load_policy(adapters[0]).model
    torch.nn.Module.to(merged, there)
    held = dict(merged.state_dict())
    assert proof_of_merged(held, read_adapter(adapters[0])) > 10
    with pytest.raises(ValueError, match="is not the base's with what"):
        proof_of_merged(held, read_adapter(adapters[1]))
