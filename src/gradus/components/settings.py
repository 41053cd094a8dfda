"""Base of all settings: frozen, no unknown keys, no credentials, nothing that cannot be stored.

And which fields a result depends on.
"""

import ast
import inspect
import itertools
import math
import re
import textwrap
from collections.abc import Mapping
from typing import Any, Self

from pydantic import ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gradus.components.exact import Exact

INCIDENTAL: dict[str, Any] = {"incidental": True}
"""Marks a field that the result does not depend on: it may change while an artifact is unfinished."""


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
    """Return whether an optional value is left out of what is written: nothing is in it, or nothing is set in it."""
    return not (value.model_dump() if isinstance(value, Config) else value)


def unset(value: object) -> bool:
    """Return whether an optional setting is unset: it is then left out of what is written, and of identities."""
    return value is None or value is False


class Config(Exact):
    """The base of all settings: frozen, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        defer_build=True,  # a verb builds the validators of its own settings alone
    )

    @model_validator(mode="after")
    def _can_be_stored(self) -> Self:
        """Settings go through JSON, Arrow and SQL: refuse what one of them has no form for, in free-form values too."""
        for name in type(self).model_fields:
            if problem := _unstorable(getattr(self, name)):
                raise ValueError(f"{name} {problem}")
        return self

    @model_validator(mode="after")
    def _without_credentials(self) -> Self:
        """Settings are stored with every result and shown by the tracker: refuse a password or key in a URL."""
        for name in type(self).model_fields:
            if credentials_in(getattr(self, name)):
                raise ValueError(f"{name} holds credentials, which would be stored with every result; leave them out")
        return self

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the doc string under each field, inherited fields included.

        pydantic's own `use_attribute_docstrings` reads them for all settings when they are imported, which is a tenth
        of what a command imports of this program.
        """
        inherited = [base.field_docs() for base in reversed(cls.__bases__) if issubclass(base, Config)]
        docs = {name: text for found in (*inherited, _own_docs(cls)) for name, text in found.items()}
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


def _own_docs(model: type[Config]) -> dict[str, str]:
    """The doc strings under what a class itself declares."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    found: dict[str, str] = {}
    for field, text in itertools.pairwise(made.body if isinstance(made, ast.ClassDef) else []):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                found[name] = inspect.cleandoc(doc)
            case _:
                pass
    return found


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
