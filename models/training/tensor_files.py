"""Named tensors in safetensors files of bounded size: written one file at a time, read one tensor at a time.

    for name, collect in tensor_files("optimizer", tensors).items():   # optimizer.safetensors, or -00001-of-00003 ...
        write = collect(0)                                             # together with all ranks that hold parts
        if write: write(folder / name)                                 # on rank 0
    saved = SavedTensors("optimizer", {path.name: path for path in folder.iterdir()})

So a state of any size passes through memory in pieces. No pickle is written or read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gradus.models.training.parallel import divided, gathered

FILE_BYTES = 512 << 20
"""A file takes tensors up to this size together, and at least one.

A rank has one file in memory, and eight ranks need eight files to write at once: half a billion parameters make them.
"""

Write = Callable[[Path], object]
"""Writes one file, at the path that it is called with."""
Collect = Callable[[int], Write | None]
"""Brings a file's tensors together on one rank, which all ranks that hold parts of them call for together; returns how
the file is written there, None on other ranks."""


class CheckpointError(ValueError):
    """A checkpoint whose state is not what this version writes."""


def tensor_files(
    stem: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, file_bytes: int = FILE_BYTES
) -> dict[str, Collect]:
    """Return the files that hold the tensors, by name, the same on every rank; copies of a device are made later."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if parts[-1] and size + tensor.nbytes > file_bytes:
            size = 0
            parts.append({})
        parts[-1][name] = tensor
        size += tensor.nbytes
    collect = partial(_collect, metadata=dict(metadata) if metadata else None)
    several = len(parts) > 1
    names = (f"{stem}-{index:05d}-of-{len(parts):05d}" if several else stem for index in range(1, len(parts) + 1))
    return {f"{name}.safetensors": partial(collect, part) for name, part in zip(names, parts, strict=True)}


def _collect(tensors: Mapping[str, Tensor], owner: int, *, metadata: dict[str, str] | None) -> Write | None:
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = gathered(tensor.detach(), owner)
        if whole is None:
            continue
        here = whole.cpu().contiguous()
        # Some optimisers' tables share memory, which no file can.
        found[name] = here.clone() if here.data_ptr() in seen else here
        seen.add(here.data_ptr())
    return partial(_write, found, metadata=metadata) if len(found) == len(tensors) else None


def _write(found: dict[str, Tensor], path: Path, *, metadata: dict[str, str] | None) -> None:
    """Write one file; OSError if the disk does not take it."""
    try:
        save_file(found, path, metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from None


class SavedTensors:
    """The tensors of a stem's files among files by name; CheckpointError if one is missing or unreadable."""

    def __init__(self, stem: str, files: Mapping[str, Path]) -> None:
        self.files = [files[name] for name in names_of(stem, files)]
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.metadata: dict[str, str] = {}
        for path in self.files:
            try:
                with safe_open(path, framework="pt") as file:
                    self.metadata |= file.metadata() or {}
                    self.shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path.name} cannot be read: {error}") from None

    def require(self, shapes: Mapping[str, tuple[int, ...]], whose: str = "") -> None:
        """Raise CheckpointError unless the tensors are exactly those named, of those shapes."""
        what = f"{self.files[0].name}{whose}"
        odd = sorted(set(self.shapes) ^ set(shapes))
        if odd:
            where = "only the file has it" if odd[0] in self.shapes else "the file lacks it"
            raise CheckpointError(f"{what} and the model disagree on {odd[0]}: {where}")
        for name, shape in self.shapes.items():
            if shape != tuple(shapes[name]):
                raise CheckpointError(f"{what}: {name} has shape {shape}, expected {tuple(shapes[name])}")

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Return name and tensor, one at a time, on the CPU."""
        for path in self.files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    yield name, file.get_tensor(name)


def names_of(stem: str, names: Iterable[str]) -> list[str]:
    """The names of a stem's files in order; raise CheckpointError if there is none, or a part is missing."""
    whole, parts = f"{stem}.safetensors", list[str]()
    expected = 0
    for name in sorted(names):
        if name == whole:
            return [name]
        if part := re.fullmatch(rf"{re.escape(stem)}-\d{{5}}-of-(\d{{5}})\.safetensors", name):
            parts.append(name)
            expected = int(part[1])
    if not parts or len(parts) != expected:
        raise CheckpointError(f"{whole} is missing" if not parts else f"{stem} has {len(parts)} of {expected} files")
    return parts


def copy_into(targets: Mapping[str, Tensor], saved: SavedTensors) -> None:
    """Set tensors in place to the saved ones of the same names."""
    with torch.no_grad():
        for name, tensor in saved:
            targets[name].copy_(divided(tensor, targets[name]))
