"""A component of a user's, called: an error names the component, its file and line, and what it was to return."""

import math
from collections.abc import Callable, Mapping, Sized
from functools import wraps
from pathlib import Path
from types import CodeType
from typing import Any, cast

import numpy as np
import pyarrow as pa

from gradus.components import Kind
from gradus.components.user_modules import CORRECT, describe, line_of
from gradus.data.curation.results import Draw, Selection
from gradus.data.curation.round import Planned, WaveError
from gradus.data.errors import BadInputError, GradusError
from gradus.data.hints import NoHint


def checked(function: Callable[..., Any], kind: Kind, name: str, file: Path) -> Callable[..., Any]:
    """Return the function of a user's component with its errors in words and its answer checked.

    The call raises BadInputError if the function raises, or returns something that its kind does not.
    """
    code: CodeType | None = getattr(function, "__code__", None)
    where = f"{kind} {name} ({file.name}{f' line {code.co_firstlineno}' if code else ''})"

    @wraps(function)
    def call(*arguments: Any, **settings: Any) -> Any:
        try:
            found = function(*arguments, **settings)
        except (GradusError, MemoryError, WaveError):
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, RuntimeError):
                from gradus.models.devices import is_out_of_memory  # noqa: PLC0415 - imports torch, for an error alone

                if is_out_of_memory(error):  # which an update answers with smaller passes
                    raise
            line = line_of(error.__traceback__, file)
            raise BadInputError(f"{kind} {name} failed at {file}{line}: {describe(error)}", hint=CORRECT) from error
        wanted, fits = RETURNS[kind]
        if not fits(found, arguments):
            article = "an" if kind[0] in "aio" else "a"
            raise BadInputError(f"{where} returned {_shown(found)}; {article} {kind} returns {wanted}", hint=CORRECT)
        return found

    return call


def _shown(found: object) -> str:
    """Describe a value by its type, and its shape or length."""
    if isinstance(found, tuple):
        return f"({', '.join(map(_shown, found[:4]))}{', ...' if len(found) > 4 else ''})"
    if found is None:
        return "None"
    shape = getattr(found, "shape", None)
    if shape is None and isinstance(found, list | dict | str | pa.Array | pa.ChunkedArray):
        shape = (len(cast("Sized", found)),)
    return type(found).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")


def _is_tensor(found: object, *shapes: tuple[int, ...]) -> bool:
    """Return whether a value is a tensor of one of these shapes, without the import of torch."""
    return hasattr(found, "requires_grad") and tuple(getattr(found, "shape", ())) in shapes


def _is_pair(found: object, shape: tuple[int, ...]) -> bool:
    if not (isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[1], Mapping)):
        return False
    return _is_tensor(found[0], shape) and all(_is_tensor(value, shape) for value in found[1].values())


def _is_selection(found: object, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(found, Selection):
        return False
    code = np.asarray(found.code)
    return _is_array(code, arguments[0].num_rows, "iu") and bool(((code >= 0) & (code <= len(found.labels))).all())


def _is_draw(found: object, arguments: tuple[Any, ...]) -> bool:
    if not isinstance(found, Draw):
        return False
    index, weight, explored = (np.asarray(each) for each in (found.index, found.weight, found.explored))
    if not (_is_array(index, index.size, "iu") and index.size <= arguments[1] and index.shape == weight.shape):
        return False
    rows = bool(((index >= 0) & (index < arguments[0].num_rows)).all()) and len(np.unique(index)) == index.size
    return rows and _is_array(explored, index.size, "b")


def _is_array(found: np.ndarray[Any, Any], num: int, kinds: str) -> bool:
    """Return whether an array has one dimension, a number of values, and a type of NumPy's `kinds`."""
    return found.shape == (num,) and found.dtype.kind in kinds


def _is_mapping(found: object, _arguments: tuple[Any, ...]) -> bool:
    return isinstance(found, Mapping)


def _is_of_tokens(found: object, arguments: tuple[Any, ...]) -> bool:
    return _is_pair(found, tuple(arguments[0].row.shape))


_METRICS = "a dict of metrics of the same shape"

RETURNS: Mapping[Kind, tuple[str, Callable[[Any, tuple[Any, ...]], bool]]] = {
    "filter": ("a Selection of N reason codes and their sentences", _is_selection),
    "ranking": ("an array of N numbers", lambda found, given: _is_array(np.asarray(found), given[0].num_rows, "iufb")),
    "sampler": ("a Draw of at most `num` different rows, with a weight and a mark for each", _is_draw),
    "hint": ("text, NoHint or None", lambda found, _: found is None or isinstance(found, str | NoHint)),
    "wave": ("a plan (round.plan) or None", lambda found, _: found is None or isinstance(found, Planned)),
    "tracker": ("a dict of arrays: its key columns and those that it keeps", _is_mapping),
    "measure": ("a dict of arrays of N values: its columns", _is_mapping),
    "shape": ("a dict of arrays of N values", _is_mapping),
    "advantage": (
        "a tensor of N advantages, or of M",
        lambda found, given: _is_tensor(found, (given[0].num_rows,), tuple(given[0].row.shape)),
    ),
    "loss": (
        f"(M token losses, or N of rows, {_METRICS})",
        lambda found, given: _is_of_tokens(found, given) or _is_pair(found, (given[0].num_rows,)),
    ),
    "aggregation": ("a tensor of M numbers", lambda found, given: _is_tensor(found, tuple(given[0].row.shape))),
    "correction": (f"(M weights, {_METRICS})", _is_of_tokens),
    "weight": (f"(M weights, {_METRICS})", _is_of_tokens),
    "optimizer": ("a torch.optim.Optimizer", lambda found, _: hasattr(found, "param_groups")),
    "schedule": ("a finite number", lambda found, _: isinstance(found, int | float) and math.isfinite(found)),
}
"""Return type of a component of each kind, and its check against the arguments; a judge checks rewards itself."""
