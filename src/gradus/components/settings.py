"""Base of all settings: frozen, of exact types, no unknown keys, no credentials, nothing that cannot be stored."""

import ast
import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from operator import eq
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Self, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails

INCIDENTAL: dict[str, Any] = {"incidental": True}
"""Marks a field that the result does not depend on: it may change while an artifact is unfinished."""
FILLED_IN = ("source_sha256", "modules", "libraries")
"""Settings of a user's component that a stage fills in itself: what its file was, and what that leads to."""
LIMIT: dict[str, Any] = {"limit": True}
"""Marks a limit of a gate: it is looked at whenever a result is used, and changing it computes nothing."""

MAX_ROWS = 1_000_000_000
"""Rows, tokens or steps that a setting may ask for; more than a machine does."""
MAX_TOKENS = 10_000_000
"""Tokens that a completion may be allowed."""
MAX_ROUNDS = 1_000_000
MAX_PROCESSES = 10_000
"""Processes, hosts, GPUs or requests at once."""
MAX_TRIES = 1000

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

_LOGIN = re.compile(r"://[^\s/?#@:]*:[^\s/?#@]+@|\bhttps?://[^\s/?#@]+@", re.IGNORECASE)
QUERY_KEY = re.compile(
    r"(?<=[?&])((?:[\w.-]{0,64}[_.-])?(?:key|apikey|token|secret|password|signature|sig|credential)=)[^&\s'\"<>]+",
    re.IGNORECASE,
)
"""A key in the query of a URL."""


def credentials_in(value: object) -> bool:
    """Return whether a text, or one in lists and mappings, has a URL with a password, a token or a key in it."""
    if isinstance(value, str):
        return bool(_LOGIN.search(value) or QUERY_KEY.search(value))
    if isinstance(value, Mapping):
        return any(credentials_in(item) for item in value.values())
    return isinstance(value, list | tuple) and any(credentials_in(item) for item in value)


def empty(value: object) -> bool:
    """Return whether an optional value is empty or unset, and so not written."""
    return not (value.model_dump() if isinstance(value, Config) else value)


def unset(value: object) -> bool:
    """Return whether an optional setting is unset; it is then not written, and not part of identities."""
    return value is None or value is False


def optional(default: Any, **rules: Any) -> Any:
    """Return a field that is neither written nor part of an identity while it has its default."""
    return Field(default=default, exclude_if=partial(eq, default), **rules)


class Exact(BaseModel):
    """Frozen settings without unknown keys: true is not a number, 1.5 not a whole one, a number neither true nor false.

    pydantic alone would read `limit = true` as 1. Its strict mode would also refuse what the command line writes as
    text (`lr=.5`) and a list where a tuple is declared.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        defer_build=True,  # a verb builds the validators of its own settings alone
    )

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


class Config(Exact):
    """The base of all settings of stages."""

    @model_validator(mode="after")
    def _can_be_stored(self) -> Self:
        """Settings are stored with every result, as JSON, Arrow and SQL, and shown by the tracker.

        Refuse what one of them has no form for, in free-form values too, and a password or key in a URL.
        """
        for name in type(self).model_fields:
            value = getattr(self, name)
            if problem := _unstorable(value):
                raise ValueError(f"{name} {problem}")
            if credentials_in(value):
                raise ValueError(f"{name} holds credentials, which would be stored with every result; leave them out")
        return self

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the doc string under each field, inherited fields included.

        pydantic's own `use_attribute_docstrings` reads them for all settings when they are imported, which is a tenth
        of what a command imports of this program.
        """
        found = [base.field_docs() for base in reversed(cls.__bases__) if issubclass(base, Config)]
        file = inspect.getsourcefile(cls)
        found += [_classes(file).get(cls.__qualname__, {})] if file else []
        docs = {name: text for each in found for name, text in each.items()}
        return {name: text for name, text in docs.items() if name in cls.model_fields}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema with the doc strings of the fields, for forms."""
        found = handler(core_schema)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in cls.field_docs().items():
            properties[name]["description"] = text
        return found

    def identified(self) -> dict[str, Any]:
        """The settings that a result depends on, as plain values: neither incidental ones nor limits."""
        found = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in found:  # an optional setting without a value
                continue
            if field.json_schema_extra in (INCIDENTAL, LIMIT):
                del found[name]
            elif isinstance(value, Config):
                found[name] = value.identified()
            elif isinstance(value, tuple) and all(isinstance(part, Config) for part in value):
                found[name] = [part.identified() for part in value]
        return found


def models_in(annotation: object, entry: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the models that an annotation holds, each with the key of an entry if in a list or a table of names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, entry
    origin = get_origin(annotation)
    of = "0." if origin is tuple else "NAME." if origin is dict else ""
    for inner in get_args(annotation):
        yield from models_in(inner, of)


@cache
def _classes(file: str) -> dict[str, dict[str, str]]:
    """Return the doc strings under the fields of each class at the top of a file."""
    made = ast.parse(Path(file).read_text(encoding="utf-8")).body
    return {each.name: dict(_documented(each.body)) for each in made if isinstance(each, ast.ClassDef)}


def _documented(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in itertools.pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                yield name, inspect.cleandoc(doc)
            case _:
                pass


_INT_BITS = 63


def _unstorable(value: object) -> str:
    """Return the fault in a number or a text, or in one in lists and mappings; empty if there is none."""
    match value:
        case float() if not math.isfinite(value):
            return "is not a finite number"
        case int() if value.bit_length() > _INT_BITS:
            return "is too large a number"
        case str():
            return _not_text(value)
        case Mapping():
            named = ((key, _unstorable(key) or _unstorable(part)) for key, part in value.items())
            return next((f"{key!r} {problem}" for key, problem in named if problem), "")
        case list() | tuple():
            return next(filter(None, map(_unstorable, value)), "")
        case _:
            return ""


def _not_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds characters that are not valid Unicode"
    return "holds a NUL character" if "\0" in text else ""


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
