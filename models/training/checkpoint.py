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
from gradus.models.training.optimizers.making import Entry, as_kept, as_tensors, blank_state
from gradus.models.training.state import TrainState

OPTIMIZER, RNG, STATE, MASTERS = "optimizer.state", "rng.state", "state.json", "master.state"
TRAIN_STATE_FILES = (OPTIMIZER, RNG, STATE)
"""Those of every train state; MASTERS is there only if the policy's own weights are not the masters."""
AVERAGE = "ema.state"
"""The moving average of the masters, if there is one."""
SavedDtype = Literal["float32", "bfloat16", "float16"]
"""Number formats that a policy can be saved in."""
_RNG_FIELDS = ("state", "inc", "has_uint32", "uinteger")
_RNG_BYTES = 16
_NAME, _USUAL = "optimizer", "adamw"
"""Where a file of state names its optimiser, and the one that it need not name."""

WriteFile = Callable[[str, bytes], object]


class CheckpointError(ValueError):
    """A checkpoint whose state is not what this version writes."""


class OtherOptimizerError(CheckpointError):
    """A checkpoint with the state of another optimiser than the one that is to go on from it."""

    def __init__(self, saved: str, wanted: str) -> None:
        super().__init__(f"{OPTIMIZER} is the state of {saved}, and the optimizer is {wanted}")
        self.saved = saved


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
        OPTIMIZER: _optimizer_bytes(train_state),
        RNG: save(_rng_tensors(train_state.rng)),
        STATE: json.dumps(asdict(Cursor(train_state.step))).encode(),
    }


def restore_train_state(train_state: TrainState, files: Mapping[str, bytes]) -> None:
    """Restore a saved train state in place; raise CheckpointError, and change nothing, if it does not fit exactly."""
    step = _cursor(files[STATE]).step
    entries: Mapping[Tensor, Entry] = _optimizer_state(train_state, files[OPTIMIZER])
    train_state.rng.bit_generator.state = _rng_state(
        tensors_of(files[RNG], RNG, dict.fromkeys(_RNG_FIELDS, (_RNG_BYTES,)))
    )
    train_state.step = step
    train_state.optimizer.state.clear()
    train_state.optimizer.state.update(entries)


def weights_bytes(train_state: TrainState) -> bytes:
    """The float32 weights that the optimiser steps."""
    return save({name: master.detach().cpu().contiguous() for name, master in train_state.masters.items()})


def restore_weights(train_state: TrainState, content: bytes, saved: SavedDtype | None = None) -> None:
    """Put the float32 weights back in place; CheckpointError if one is missing, unknown or of another shape.

    Raise it, too, if `saved` is the number format of the policy beside them and they are not what it was rounded from.
    """
    masters = train_state.masters
    found = tensors_of(content, MASTERS, {name: master.shape for name, master in masters.items()})
    if saved is not None:
        _refuse_others(masters, found, getattr(torch, saved))
    with torch.no_grad():
        for name, master in masters.items():
            master.copy_(found[name])
    train_state.write_back()


def average_bytes(train_state: TrainState) -> bytes:
    """The moving average of the masters."""
    return save({name: average.cpu().contiguous() for name, average in train_state.average.items()})


def restore_average(train_state: TrainState, content: bytes) -> None:
    """Put the moving average back; CheckpointError if a weight is missing, unknown or of another shape."""
    masters = train_state.masters
    found = tensors_of(content, AVERAGE, {name: master.shape for name, master in masters.items()})
    train_state.average = {name: found[name].to(master.device) for name, master in masters.items()}


def _refuse_others(loaded: Mapping[str, Tensor], found: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    for name, weight in loaded.items():
        master = found[name].to(weight.device)
        if not (torch.equal(master.to(dtype).float(), weight) or torch.equal(master, weight)):
            raise CheckpointError(f"{MASTERS} is not what the policy's {name} was rounded from")


def _optimizer_bytes(train_state: TrainState) -> bytes:
    """What the optimiser keeps of every parameter that a gradient has reached, and its name unless it is AdamW."""
    state, label = train_state.optimizer.state, train_state.chosen.label
    found = {
        f"{key}.{name}": tensor
        for name, master in train_state.masters.items()
        for key, tensor in as_tensors(state.get(master, {})).items()
    }
    return save(_apart(found), None if label == _USUAL else {_NAME: label})


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of which no two share memory, as some optimisers' tables do and no file can."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return found


def _optimizer_state(train_state: TrainState, content: bytes) -> dict[Tensor, Entry]:
    """The entries of a file, each with exactly the tensors that this optimiser keeps of its parameter."""
    saved, wanted = _metadata(content).get(_NAME, _USUAL), train_state.chosen.label
    if saved != wanted:
        raise OtherOptimizerError(saved, wanted)
    blank = blank_state(train_state.optimizer)
    shapes = {
        name: {f"{key}.{name}": tuple(tensor.shape) for key, tensor in as_tensors(blank.get(master, {})).items()}
        for name, master in train_state.masters.items()
    }
    found = _loaded(content, OPTIMIZER)
    reached = [name for name, of_name in shapes.items() if not found.keys().isdisjoint(of_name)]
    expected = {key: shape for name in reached for key, shape in shapes[name].items()}
    _refuse_misfits(found, f"{OPTIMIZER} of {wanted}", expected)
    entries: dict[Tensor, Entry] = {}
    for name in reached:
        entry = blank[train_state.masters[name]]
        tensors = {key: found[f"{key}.{name}"] for key, value in entry.items() if value is not None}
        entries[train_state.masters[name]] = as_kept(tensors, entry)
    return entries


def _metadata(content: bytes) -> dict[str, str]:
    """The notes in the head of a safetensors file, which begins with the length of its JSON in 8 bytes."""
    try:
        head = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except ValueError:
        return {}  # no such file; reading its tensors says so
    return head.get("__metadata__", {})


def tensors_of(content: bytes, file: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of a file, which must be exactly those named, of those shapes."""
    saved = _loaded(content, file)
    _refuse_misfits(saved, file, shapes)
    return saved


def _loaded(content: bytes, file: str) -> dict[str, Tensor]:
    try:
        return load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None


def _refuse_misfits(saved: Mapping[str, Tensor], file: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    odd = sorted(set(saved) ^ set(shapes))
    if odd:
        where = "only the file has it" if odd[0] in saved else "the file lacks it"
        raise CheckpointError(f"{file} and the model disagree on {odd[0]}: {where}")
    for name, tensor in saved.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise CheckpointError(f"{file}: {name} has shape {tuple(tensor.shape)}, expected {tuple(shapes[name])}")


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
