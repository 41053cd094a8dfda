"""A second device for tests, in place of the GPU that this machine may lack.

    with elsewhere() as device:
        model.to(device)
        model.tie_weights()  # moving makes new tensors, each its own

A tensor there holds an ordinary one, and every operation is done on that. As on a GPU, an operation on tensors of
both devices is refused, but for copies, numbers without dimensions and indices.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
_aten = torch.ops.aten
_BOTH = {
    _aten.copy_.default,
    _aten._to_copy.default,
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
"""Operations that take tensors of two devices."""


class Elsewhere(torch.Tensor):
    """A tensor of that device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Elsewhere":
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=torch.device(NAME, 0)
        )

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, dict(kwargs or {}))


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, dict(kwargs or {}))


class _Tensor(TorchFunctionMode):
    """`torch.tensor` alone asks no mode for operations where it puts what it made."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = dict(kwargs or {})
        if func is torch.tensor and asked.get("device") is not None:
            return torch.tensor(*args, **{**asked, "device": None}).to(asked["device"])
        return func(*args, **asked)


def _done(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = tree_flatten((args, kwargs))[0]
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    here = [tensor for tensor in tensors if not isinstance(tensor, Elsewhere) and tensor.dim()]
    if there and here and func not in _BOTH:
        raise RuntimeError(f"{func} was given tensors of two devices: {[tuple(t.shape) for t in tensors]}")
    devices = [value for value in given if isinstance(value, torch.device)]
    goes_there = devices[0].type == NAME if devices else bool(there)
    if func is _aten.copy_.default:
        goes_there = isinstance(args[0], Elsewhere)
    found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    if devices and tensors and goes_there != bool(there):
        found = found.clone()  # to another device is always another memory
    # What changes a tensor in place gives that tensor.
    known = {id(tensor.held): tensor for tensor in there}
    return tree_map(lambda value: _wrapped(value, known) if goes_there else value, found)


def _held(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.held if isinstance(value, Elsewhere) else value


def _wrapped(value: Any, known: dict[int, Elsewhere]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else Elsewhere(value)


@cache
def _register() -> None:
    _setup_privateuseone_for_python_backend(NAME)


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """While it lasts, tensors can be made on that device."""
    _register()
    # Threads for the gradients of a device are made once in a process, perhaps before this device was known.
    with torch.autograd.set_multithreading_enabled(False), _Tensor(), _Mode():
        yield torch.device(NAME, 0)
