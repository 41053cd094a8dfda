"""What a checkpoint holds beside the model: the optimiser's state and the cursor, as safetensors and JSON.

Reading is strict: a field that is missing, or one that nobody knows, raises. No pickle is written or read.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from models.policy import Policy
from models.update import Learner

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")

WriteFile = Callable[[str, bytes], object]


class CheckpointError(ValueError):
    """A checkpoint whose state is not what this version writes."""


@dataclass(frozen=True)
class Cursor:
    """Where a run stands: optimiser steps taken since it began."""

    step: int


def write_policy(policy: Policy, scratch: Path, write: WriteFile) -> None:
    """Hand the files of a policy that transformers can load to `write`; `scratch` is an empty folder to work in."""
    policy.model.save_pretrained(scratch, safe_serialization=True)
    policy.tokenizer.save_pretrained(scratch)
    for path in sorted(scratch.iterdir()):
        write(path.name, path.read_bytes())
        path.unlink()


def learner_bytes(learner: Learner) -> dict[str, bytes]:
    """The optimiser's state and the cursor, by file name."""
    return {OPTIMIZER: save(_moments(learner)), STATE: json.dumps(asdict(Cursor(learner.step))).encode()}


def restore_learner(learner: Learner, files: dict[str, bytes]) -> None:
    """Put a saved state back into a learner in place; CheckpointError where it does not fit exactly."""
    learner.step = _cursor(files[STATE]).step
    if learner.step == 0:
        return
    saved = load(files[OPTIMIZER])
    names = {name for name, _ in learner.model.named_parameters()}
    expected = {f"{moment}.{name}" for moment in _MOMENTS for name in names}
    if set(saved) != expected:
        odd = min(set(saved) ^ expected)
        raise CheckpointError(f"the optimiser state and the model disagree on {odd}")
    for name, parameter in learner.model.named_parameters():
        learner.optimizer.state[parameter] = {moment: saved[f"{moment}.{name}"] for moment in _MOMENTS}


def weights_bytes(learner: Learner) -> bytes:
    """The model's parameters alone, for resumable state inside a long update."""
    return save({name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()})


def restore_weights(learner: Learner, content: bytes) -> None:
    """Put parameters back in place; CheckpointError where one is missing or unknown."""
    saved = load(content)
    parameters = dict(learner.model.named_parameters())
    if set(saved) != set(parameters):
        raise CheckpointError(f"the saved weights and the model disagree on {min(set(saved) ^ set(parameters))}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def _moments(learner: Learner) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, parameter in learner.model.named_parameters():
        state: dict[str, Any] = learner.optimizer.state.get(parameter, {})
        found.update({f"{moment}.{name}": state[moment].clone() for moment in _MOMENTS if moment in state})
    return found


def _cursor(content: bytes) -> Cursor:
    body: dict[str, Any] = json.loads(content)
    known = {field.name for field in fields(Cursor)}
    if set(body) != known:
        raise CheckpointError(f"the cursor has {sorted(body)}, expected {sorted(known)}")
    return Cursor(**body)
