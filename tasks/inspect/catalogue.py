"""What there is to choose from: every registered component with its sentence, every setting with type and default.

    catalogue()["filter"]["pass_rate"]["what"]        # "Keep problems whose pass rate lies in [low, high] ..."

Sentences are the first lines of the components' own docstrings, read from the source.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, TypedDict, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gradus.components import KINDS
from gradus.components.description import Component as Registered
from gradus.components.registry import components
from gradus.components.settings import Config
from gradus.tasks.stages.registry import stages

ENGINES = {
    "transformers": "gradus.models.engines.hf",
    "vllm": "gradus.models.engines.vllm",
    "openai": "gradus.models.engines.server",
}
REQUIRED = "required"

_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


class Setting(TypedDict):
    """One setting of a stage or a component."""

    type: str
    default: str
    what: str


class Component(TypedDict):
    """One thing that settings name, or a stage."""

    what: str
    paper: str
    settings: dict[str, Setting]


def catalogue() -> dict[str, dict[str, Component]]:
    """Kind -> name -> sentence and settings; the settings of nested models are dotted keys."""
    return {
        "stage": {name: _stage(spec.settings) for name, spec in stages().items()},
        **{kind: {name: _component(each) for name, each in components(kind).items()} for kind in KINDS},
        "engine": {name: _engine(module) for name, module in ENGINES.items()},
    }


def settings_of(model: type[BaseModel]) -> dict[str, Setting]:
    """Every setting of a model by its dotted key."""
    return dict(_fields(model, ""))


def _first(doc: str | None) -> str:
    return (doc or "").partition("\n")[0]


def _component(component: Registered) -> Component:
    return {"what": component.summary, "paper": component.paper, "settings": settings_of(component.settings)}


def _engine(module: str) -> Component:
    return {"what": re.sub(r"^Engine `\w+`: ", "", _first(_source_doc(module))), "paper": "", "settings": {}}


def _source_doc(module: str) -> str:
    """The docstring of a module that is not imported."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def _stage(config: type[Config]) -> Component:
    return {"what": _first(inspect.getdoc(config)), "paper": "", "settings": settings_of(config)}


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Setting]]:
    """Every setting of a model; of a nested model, or of the first entry of a list of them, with dotted keys."""
    docs = model.field_docs() if issubclass(model, Config) else {}
    for name, field in model.model_fields.items():
        inner = next(
            (part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, Config)), None
        )
        key = f"{prefix}{name}"
        what = " ".join((docs.get(name) or field.description or "").split())
        if inner is None:
            yield key, Setting(type=_type(field.annotation) + _bounds(field), default=_default(field), what=what)
            continue
        is_list = get_origin(field.annotation) is tuple
        yield (
            key,
            Setting(type="list" if is_list else "table", default=_default(field) if is_list else "as below", what=what),
        )
        yield from _fields(inner, f"{key}.{'0.' if is_list else ''}")


def _parts(annotation: object) -> Iterator[object]:
    yield annotation
    for inner in get_args(annotation):
        yield from _parts(inner)


def _type(annotation: object) -> str:
    """A type in words: `int`, `list of float`, `grpo | dr_grpo | rloo`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(value) or "(empty)" for value in inner)
    if origin in (Union, UnionType):
        return " | ".join(_type(part) for part in inner if part is not NoneType)
    if origin in (tuple, list):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"table of {_type(inner[1])}"
    return "text" if annotation is str else getattr(annotation, "__name__", str(annotation))


def _bounds(field: FieldInfo) -> str:
    found = [(name, getattr(rule, name)) for rule in field.metadata for name in _BOUNDS if hasattr(rule, name)]
    return "".join(f", {_BOUNDS[name]} {value:,.15g}" for name, value in found)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return REQUIRED if value is PydanticUndefined else _text(value)


def _text(value: object) -> str:
    """A default as it is written in a recipe."""
    if value is None or value == "":
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        return f"[{', '.join(part.name if hasattr(part, 'name') else _text(part) for part in value)}]"
    return json.dumps(value)
