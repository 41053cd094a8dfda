"""Evidence that a sampler holds a checkpoint's weights: checksums of its own tensors beside those of the files.

A sampler left with old weights goes unnoticed for months (verl#7495), so nothing is sampled before they agree.
The set is fixed by the files alone: the first tensors by name, spread over the model, up to a limit of bytes.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

EVIDENCE_BYTES = 256 << 20
"""Bytes of weights compared at most."""


def tensor_sum(tensor: Tensor) -> str:
    """SHA-256 of a tensor's number format, shape and bytes."""
    flat = tensor.detach().cpu().contiguous()
    head = f"{flat.dtype} {tuple(flat.shape)}".encode()
    return hashlib.sha256(head + flat.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def fixed_set(folder: Path, held: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The tensors to compare, name -> first rows of it: of those on both sides, from both ends of the model inwards.

    `held` is name -> shape; a tensor may have more rows there than in the files. Raises ValueError if there is no
    tensor to compare, or the files cannot be read.
    """
    files: dict[str, list[int]] = {}
    try:
        for path in folder.glob("*.safetensors"):
            with safe_open(path, framework="pt") as file:
                files |= {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict
    except SafetensorError as error:
        raise ValueError(f"{folder} has weights that cannot be read: {error}") from None
    ordered = sorted(name for name, shape in files.items() if shape and _contains(held.get(name, ()), shape))
    inwards = [name for pair in zip(ordered, reversed(ordered), strict=True) for name in pair]
    chosen: dict[str, int] = {}
    num_bytes = 0
    for name in dict.fromkeys(inwards):
        num_bytes += 4 * math.prod(files[name])
        if chosen and num_bytes > EVIDENCE_BYTES:
            break
        chosen[name] = files[name][0]
    if not chosen:
        raise ValueError(f"{folder} and the engine have no tensor of the same name and shape")
    return chosen


def _contains(held: Sequence[int], shape: Sequence[int]) -> bool:
    return len(held) == len(shape) and held[0] >= shape[0] and list(held[1:]) == list(shape[1:])


def verify_weights(held: Mapping[str, Tensor], folder: Path) -> int:
    """Hold a model's own tensors against a checkpoint's files, in the number format it holds them in.

    Return how many were compared; raise ValueError with the name of the first that differs.
    """
    rows = fixed_set(folder, {name: tuple(tensor.shape) for name, tensor in held.items()})
    given = {name: tensor_sum(held[name][:num_rows]) for name, num_rows in rows.items()}
    return compare(given, {name: held[name].dtype for name in rows}, folder)


def compare(given: Mapping[str, str], dtypes: Mapping[str, torch.dtype], folder: Path) -> int:
    """Hold checksums that an engine gave, each of a tensor in that format, against the files; as `verify_weights`."""
    different: list[str] = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            shared = sorted(set(file.keys()) & set(given))
            different += [n for n in shared if tensor_sum(file.get_tensor(n).to(dtypes[n])) != given[n]]
    if different:
        raise ValueError(f"{len(different)} of {len(given)} tensors are not those of {folder} (first {different[0]})")
    return len(given)
