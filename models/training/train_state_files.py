"""Files of a train state beside the policy: optimiser, masters, average and cursor, and its critic.

Reading is strict: a missing or an unknown field raises. No pickle is written or read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gradus.models.training.checkpoint import SavedDtype
from gradus.models.training.optimizers.making import Entry, as_kept, as_tensors, blank_state
from gradus.models.training.parallel import divided, same
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.models.training.tensor_files import CheckpointError, Collect, SavedTensors, copy_into, tensor_files

OPTIMIZER, MASTERS, AVERAGE = "optimizer", "masters", "ema"
CRITIC, CRITIC_OPTIMIZER = "critic", "critic_optimizer"
"""Stems of the files: NAME.safetensors, or NAME-00001-of-00003.safetensors and so on."""
CURSOR = "state.json"
"""The file with the number of steps and the state of the random numbers."""
_NAME, _USUAL = "optimizer", "adamw"
"""Key that names the optimiser in a file of state, and the optimiser that need not be named."""

Files = Mapping[str, Path]


class OtherOptimizerError(CheckpointError):
    """A checkpoint with the state of another optimiser than the one that is to continue from it."""

    def __init__(self, saved: str, wanted: str) -> None:
        super().__init__(f"the saved state is of {saved}, and the optimizer is {wanted}")
        self.saved = saved


def train_state_files(train_state: TrainState, critic: Critic | None = None, *, masters: bool) -> dict[str, Collect]:
    """Return the files of a train state and its critic by name.

    `masters`: with the float32 weights, where the policy's own files do not have them.
    """
    # The same on every rank, whichever writes it.
    cursor = json.dumps({"step": train_state.step, "rng": train_state.rng.bit_generator.state})
    kept, average = train_state.masters, tensor_files(AVERAGE, train_state.average) if train_state.average else {}
    return {
        **(tensor_files(MASTERS, kept) if masters else {}),
        **average,
        **_optimizer_files(OPTIMIZER, train_state.optimizer, kept, train_state.chosen.label),
        CURSOR: lambda _owner: lambda path: path.write_text(cursor),
        **(critic_files(critic) if critic is not None else {}),
    }


def restore_train_state(train_state: TrainState, files: Files, saved: SavedDtype | None = None) -> None:
    """Restore a saved train state in place; raise CheckpointError, and change nothing, if it does not fit exactly.

    Raise it, too, if `saved` is the number format of the policy beside them and the float32 weights are not what it was
    rounded from.
    """
    kept = train_state.masters
    found = {stem: SavedTensors(stem, files) for stem in (MASTERS, AVERAGE) if _has(stem, files)}
    for each in found.values():
        each.require(_shapes(kept))
    if MASTERS in found and saved is not None:
        _refuse_others(kept, found[MASTERS], getattr(torch, saved))
    step, rng = _cursor(files)
    entries = _optimizer_state(OPTIMIZER, files, train_state.optimizer, kept, train_state.chosen.label)
    if MASTERS in found:
        copy_into(kept, found[MASTERS])
        train_state.write_back()
    if AVERAGE in found:
        train_state.average = {name: divided(tensor, kept[name]) for name, tensor in found[AVERAGE]}
    train_state.rng.bit_generator.state = rng
    train_state.step = step
    train_state.optimizer.state.clear()
    train_state.optimizer.state.update(entries)


def critic_files(critic: Critic) -> dict[str, Collect]:
    """Return the files of a critic by name."""
    return {
        **tensor_files(CRITIC, critic.trained),
        **_optimizer_files(CRITIC_OPTIMIZER, critic.optimizer, critic.trained),
    }


def restore_critic(critic: Critic, files: Files) -> None:
    """Restore a saved critic in place; raise CheckpointError, and change nothing, if it does not fit exactly."""
    weights = SavedTensors(CRITIC, files)
    weights.require(_shapes(critic.trained))
    entries = _optimizer_state(CRITIC_OPTIMIZER, files, critic.optimizer, critic.trained)
    copy_into(critic.trained, weights)
    critic.optimizer.state.update(entries)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _has(stem: str, files: Files) -> bool:
    return any(name.startswith((f"{stem}.", f"{stem}-")) for name in files)


def _refuse_others(loaded: Mapping[str, Tensor], found: SavedTensors, dtype: torch.dtype) -> None:
    for name, saved in found:
        weight, master = loaded[name], divided(saved, loaded[name])
        if not (same(master.to(dtype).float(), weight) or same(master, weight)):
            raise CheckpointError(f"{found.files[0].name} is not what the policy's {name} was rounded from")


def _optimizer_files(
    stem: str, optimizer: Optimizer, masters: Mapping[str, Parameter], label: str = _USUAL
) -> dict[str, Collect]:
    """Return the optimiser's state of every parameter that a gradient has reached, and its name unless it is AdamW."""
    found = {
        f"{key}.{name}": tensor
        for name, master in masters.items()
        for key, tensor in as_tensors(optimizer.state.get(master, {})).items()
    }
    return tensor_files(stem, found, None if label == _USUAL else {_NAME: label})


def _optimizer_state(
    stem: str, files: Files, optimizer: Optimizer, masters: Mapping[str, Parameter], wanted: str = _USUAL
) -> dict[Tensor, Entry]:
    """The saved entries, each with exactly the tensors that this optimiser keeps of its parameter."""
    found = SavedTensors(stem, files)
    saved = found.metadata.get(_NAME, _USUAL)
    if saved != wanted:
        raise OtherOptimizerError(saved, wanted)
    blank = blank_state(optimizer)
    shapes = {
        name: {f"{key}.{name}": shape for key, shape in _shapes(as_tensors(blank.get(master, {}))).items()}
        for name, master in masters.items()
    }
    reached = [name for name, of_name in shapes.items() if not found.shapes.keys().isdisjoint(of_name)]
    found.require({key: shape for name in reached for key, shape in shapes[name].items()}, f" of {wanted}")
    tensors = dict(found)
    entries: dict[Tensor, Entry] = {}
    for name in reached:
        entry = blank[masters[name]]
        own = {key: tensors[f"{key}.{name}"] for key, value in entry.items() if value is not None}
        entries[masters[name]] = as_kept(own, entry)
    return entries


def _cursor(files: Files) -> tuple[int, dict[str, Any]]:
    """Return the number of steps and the state of the generator, a PCG64."""
    if CURSOR not in files:
        raise CheckpointError(f"{CURSOR} is missing")
    try:
        body = json.loads(files[CURSOR].read_bytes())
        generator = np.random.PCG64()
        generator.state = body["rng"]
        fits = body == {"step": body["step"], "rng": generator.state} and type(body["step"]) is int
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise CheckpointError(f"{CURSOR} cannot be read: {error!r}") from None
    if not fits:
        raise CheckpointError(f"{CURSOR} does not hold a whole number as step and the state of a PCG64 as rng, alone")
    return body["step"], body["rng"]
