"""What a checkpoint holds beside the model: optimiser, random numbers and cursor, as safetensors and JSON.

Reading is strict: a field that is missing, or one that nobody knows, raises. No pickle is written or read.
Files are handed to a writer as bytes; making them durable and naming them in a manifest is the store's work.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gradus.models.policy import Policy
from gradus.models.training.state import TrainState

OPTIMIZER, RNG, STATE, WEIGHTS = "optimizer.state", "rng.state", "state.json", "weights.safetensors"
TRAIN_STATE_FILES = (OPTIMIZER, RNG, STATE)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_RNG_FIELDS = ("state", "inc", "has_uint32", "uinteger")
_RNG_BYTES = 16

WriteFile = Callable[[str, bytes], object]


class CheckpointError(ValueError):
    """A checkpoint whose state is not what this version writes."""


@dataclass(frozen=True)
class Cursor:
    """Optimiser steps taken since the run began."""

    step: int


def write_policy(policy: Policy, scratch: Path, write: WriteFile) -> None:
    """Hand the files of a policy that transformers can load to `write`; `scratch` is an empty folder to work in."""
    policy.model.save_pretrained(scratch, safe_serialization=True)
    policy.tokenizer.save_pretrained(scratch)
    for path in sorted(scratch.iterdir()):
        write(path.name, path.read_bytes())
        path.unlink()


def train_state_bytes(train_state: TrainState) -> dict[str, bytes]:
    """Optimiser, random numbers and cursor, by file name."""
    return {
        OPTIMIZER: save(_moments(train_state)),
        RNG: save(_rng_tensors(train_state.rng)),
        STATE: json.dumps(asdict(Cursor(train_state.step))).encode(),
    }


def restore_train_state(train_state: TrainState, files: Mapping[str, bytes]) -> None:
    """Restore a saved train state in place; raise CheckpointError, and change nothing, if it does not fit exactly."""
    step = _cursor(files[STATE]).step
    parameters = dict(train_state.model.named_parameters())
    shapes = {f"{m}.{name}": () if m == "step" else p.shape for name, p in parameters.items() for m in _MOMENTS}
    saved = tensors_of(files[OPTIMIZER], OPTIMIZER, shapes)
    train_state.rng.bit_generator.state = _rng_state(
        tensors_of(files[RNG], RNG, dict.fromkeys(_RNG_FIELDS, (_RNG_BYTES,)))
    )
    train_state.step = step
    for name, parameter in parameters.items():
        # AdamW counts its steps on the CPU, wherever the parameters are.
        train_state.optimizer.state[parameter] = {
            m: saved[f"{m}.{name}"].to("cpu" if m == "step" else parameter.device) for m in _MOMENTS
        }


def weights_bytes(train_state: TrainState) -> bytes:
    """The model's parameters alone, for resumable state inside a long update."""
    return save(
        {name: parameter.detach().cpu().contiguous() for name, parameter in train_state.model.named_parameters()}
    )


def restore_weights(train_state: TrainState, content: bytes) -> None:
    """Put parameters back in place; CheckpointError if one is missing, unknown or of another shape."""
    parameters = dict(train_state.model.named_parameters())
    saved = tensors_of(content, WEIGHTS, {name: p.shape for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def _moments(train_state: TrainState) -> dict[str, Tensor]:
    """AdamW's state of every parameter; zeros, which is how AdamW begins, for one that no gradient has reached."""
    found: dict[str, Tensor] = {}
    for name, parameter in train_state.model.named_parameters():
        state: dict[str, Any] = train_state.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            fresh = torch.tensor(0.0) if moment == "step" else torch.zeros_like(parameter)
            found[f"{moment}.{name}"] = state.get(moment, fresh).detach().cpu().contiguous()
    return found


def tensors_of(content: bytes, file: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of a file, which must be exactly those named, of those shapes."""
    try:
        saved: dict[str, Tensor] = load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    odd = sorted(set(saved) ^ set(shapes))
    if odd:
        where = "only the file has it" if odd[0] in saved else "the file lacks it"
        raise CheckpointError(f"{file} and the model disagree on {odd[0]}: {where}")
    for name, tensor in saved.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise CheckpointError(f"{file}: {name} has shape {tuple(tensor.shape)}, expected {tuple(shapes[name])}")
    return saved


def _rng_tensors(rng: np.random.Generator) -> dict[str, Tensor]:
    """The state of a PCG64 generator; its integers of up to 128 bits as little-endian bytes."""
    state: dict[str, Any] = dict(rng.bit_generator.state)
    flat: dict[str, int] = {**state["state"], "has_uint32": state["has_uint32"], "uinteger": state["uinteger"]}
    return {
        name: torch.tensor(list(int(flat[name]).to_bytes(_RNG_BYTES, "little")), dtype=torch.uint8)
        for name in _RNG_FIELDS
    }


def _rng_state(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    flat = {name: int.from_bytes(bytes(tensors[name].tolist()), "little") for name in _RNG_FIELDS}
    return {
        "bit_generator": "PCG64",
        "state": {"state": flat["state"], "inc": flat["inc"]},
        "has_uint32": flat["has_uint32"],
        "uinteger": flat["uinteger"],
    }


def _cursor(content: bytes) -> Cursor:
    try:
        body: Any = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{STATE} cannot be read: {error}") from None
    known = {entry.name for entry in fields(Cursor)}
    if not isinstance(body, dict) or set(body) != known or not all(isinstance(v, int) for v in body.values()):
        raise CheckpointError(f"the cursor has {body}, expected whole numbers for {sorted(known)}")
    return Cursor(**body)
