"""The base of settings: true is not a number, a fraction is not a whole number, a number is neither true nor false.

pydantic alone would read `limit = true` as 1. Its strict mode would also refuse what the command line writes as text
(`lr=.5`) and a list where a tuple is declared.
"""

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import InitErrorDetails

_NOT: Mapping[object, tuple[str, tuple[type, ...]]] = {
    int: ("int_type", (bool, float)),
    float: ("float_type", (bool,)),
    bool: ("bool_type", (int, float)),
    str: ("string_type", (bool, int, float)),
    NoneType: ("none_required", (bool, int, float)),
}
"""The error and the types of values that a setting of a type does not take."""
_Fault = tuple[str, tuple[str | int, ...], object]
"""An error, the place of the value within its setting, and the value."""


class Exact(BaseModel):
    """Settings whose numbers and switches are written as such."""

    @model_validator(mode="before")
    @classmethod
    def _of_their_types(cls, given: object) -> object:
        for name, field in cls.model_fields.items() if isinstance(given, Mapping) else ():
            body = cast("Mapping[str, object]", given)
            fault = _fault(body[name], field.annotation) if name in body else None
            if fault is not None:
                error, place, value = fault
                raise ValidationError.from_exception_data(
                    cls.__name__, [InitErrorDetails(type=error, loc=(name, *place), input=value)]
                )
        return given


def _fault(value: object, annotation: Any) -> _Fault | None:
    """Return the fault in the types of a value; other faults are left to pydantic."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _fault(value, parts[0])
    if origin in (Union, UnionType):
        faults = [_fault(value, part) for part in parts]
        return None if None in faults else faults[0]
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return _fault_inside(enumerate(cast("Sequence[object]", value)), parts)
    if origin is dict and isinstance(value, Mapping):
        return _fault_inside(cast("Mapping[str, object]", value).items(), parts[1:])
    error, refused = _NOT.get(annotation, ("", ()))
    is_wrong = isinstance(value, refused) and not (annotation is bool and isinstance(value, bool))
    return (error, (), value) if is_wrong else None


def _fault_inside(values: Any, parts: Sequence[Any]) -> _Fault | None:
    """The first fault of the parts of a value; the last type but `...` stands for all that follow."""
    wanted = [part for part in parts if part is not ...]
    for index, (key, value) in enumerate(values):
        fault = _fault(value, wanted[min(index, len(wanted) - 1)]) if wanted else None
        if fault is not None:
            error, place, odd = fault
            return error, (key, *place), odd
    return None
