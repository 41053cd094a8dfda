"""What a checkpoint holds beside the model: optimiser, random numbers and cursor, as safetensors and JSON.

Reading is strict: a field that is missing, or one that nobody knows, raises. No pickle is written or read.
Files are handed to a writer as bytes; making them durable and naming them in a manifest is the store's work.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.policy import Policy
from gradus.models.policy_files import CONFIG
from gradus.models.training.state import TrainState

OPTIMIZER, RNG, STATE, MASTERS = "optimizer.state", "rng.state", "state.json", "master.state"
TRAIN_STATE_FILES = (OPTIMIZER, RNG, STATE)
"""Those of every train state; MASTERS is there only if the policy's own weights are not the masters."""
SavedDtype = Literal["float32", "bfloat16", "float16"]
"""Number formats that a policy can be saved in."""
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


def write_policy(
    policy: Policy,
    scratch: Path,
    write: WriteFile,
    weights: Mapping[str, Tensor] | None = None,
    dtype: SavedDtype | None = None,
) -> None:
    """Hand the files of a policy that transformers can load to `write`; `scratch` is an empty folder to work in.

    `weights` by parameter name stand for the model's own, and are rounded to `dtype`; None keeps the model's.
    """
    model = policy.model
    given = dict(model.named_parameters()) if weights is None else weights
    if dtype is None or getattr(torch, dtype) == model.dtype:
        model.save_pretrained(scratch, state_dict=_state_dict(model, given, None), safe_serialization=True)
    else:
        state = _state_dict(model, given, getattr(torch, dtype))
        model.save_pretrained(scratch, state_dict=state, safe_serialization=True)
        _name_dtype(scratch / CONFIG, dtype)
    policy.tokenizer.save_pretrained(scratch)
    for path in sorted(scratch.iterdir()):
        write(path.name, path.read_bytes())
        path.unlink()


def _state_dict(model: PreTrainedModel, weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """What transformers saves of a model, with these weights; None keeps the number format of each parameter."""
    # Tied weights have one name among the parameters and several in the state; they must stay one tensor.
    rounded = {id(p): weights[name].detach().to(dtype or p.dtype) for name, p in model.named_parameters()}
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    return {name: rounded.get(id(value), value.detach()) for name, value in state.items()}


def _name_dtype(path: Path, dtype: str) -> None:
    """Let a configuration, and the parts of it that name one, say this number format."""
    body = json.loads(path.read_bytes())
    for part in (body, *body.values()):
        if isinstance(part, dict) and "dtype" in part:
            part["dtype"] = dtype
    path.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")


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
    parameters = train_state.masters
    shapes = {f"{m}.{name}": () if m == "step" else p.shape for name, p in parameters.items() for m in _MOMENTS}
    saved = _tensors(files[OPTIMIZER], OPTIMIZER, shapes)
    train_state.rng.bit_generator.state = _rng_state(
        _tensors(files[RNG], RNG, dict.fromkeys(_RNG_FIELDS, (_RNG_BYTES,)))
    )
    train_state.step = step
    for name, parameter in parameters.items():
        # AdamW counts its steps on the CPU, wherever the parameters are.
        train_state.optimizer.state[parameter] = {
            m: saved[f"{m}.{name}"].to("cpu" if m == "step" else parameter.device) for m in _MOMENTS
        }


def weights_bytes(train_state: TrainState) -> bytes:
    """The float32 weights that the optimiser steps."""
    return save({name: master.detach().cpu().contiguous() for name, master in train_state.masters.items()})


def restore_weights(train_state: TrainState, content: bytes, saved: SavedDtype | None = None) -> None:
    """Put the float32 weights back in place; CheckpointError if one is missing, unknown or of another shape.

    Raise it, too, if `saved` is the number format of the policy beside them and they are not what it was rounded from.
    """
    masters = train_state.masters
    found = _tensors(content, MASTERS, {name: master.shape for name, master in masters.items()})
    if saved is not None:
        _refuse_others(masters, found, getattr(torch, saved))
    with torch.no_grad():
        for name, master in masters.items():
            master.copy_(found[name])
    train_state.write_back()


def _refuse_others(loaded: Mapping[str, Tensor], found: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    for name, weight in loaded.items():
        master = found[name].to(weight.device)
        if not (torch.equal(master.to(dtype).float(), weight) or torch.equal(master, weight)):
            raise CheckpointError(f"{MASTERS} is not what the policy's {name} was rounded from")


def _moments(train_state: TrainState) -> dict[str, Tensor]:
    """AdamW's state of every parameter; zeros, which is how AdamW begins, for one that no gradient has reached."""
    found: dict[str, Tensor] = {}
    for name, parameter in train_state.masters.items():
        state: dict[str, Any] = train_state.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            fresh = torch.tensor(0.0) if moment == "step" else torch.zeros_like(parameter)
            found[f"{moment}.{name}"] = state.get(moment, fresh).detach().cpu().contiguous()
    return found


def _tensors(content: bytes, file: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
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
