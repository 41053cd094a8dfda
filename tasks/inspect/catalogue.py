"""Catalogue of choices: every registered component with its sentence, every setting with type and default.

Sentences are the first lines of the components' own docstrings, read from the source; settings that a stage fills in
itself (digests of a user's files) are left out.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import gradus
from gradus.components import KINDS, Kind
from gradus.components.description import Component as Registered
from gradus.components.registry import SETTINGS, components
from gradus.components.settings import FILLED_IN, Config, models_in
from gradus.tasks.stages.registry import stages

ENGINES = {
    "transformers": "gradus.models.engines.hf",
    "vllm": "gradus.models.engines.vllm",
    "openai": "gradus.models.engines.server",
}
REQUIRED = "required"

_TESTS = Path(gradus.__file__).parents[2] / "tests"
_TEST = re.compile(r"def (test_\w+)\(")
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
    doc: str
    """The docstring of its function without arguments: formula, source, deviations."""
    setting: str
    """The setting that names it (update.loss); empty for a stage."""
    where: str
    """File and line of its function."""
    test: str
    """The first test that names it; empty outside a checkout."""


_EMPTY: Component = {"what": "", "paper": "", "settings": {}, "doc": "", "setting": "", "where": "", "test": ""}


def catalogue() -> dict[str, dict[str, Component]]:
    """Kind -> name -> sentence and settings; the settings of nested models are dotted keys."""
    return {
        "stage": {name: _stage(spec.settings) for name, spec in stages().items()},
        **{kind: {name: _component(each) for name, each in components(kind).items()} for kind in KINDS},
        "engine": {name: _engine(module) for name, module in ENGINES.items()},
    }


def kind_of(setting: str) -> Kind | None:
    """Return the kind of component that a setting names."""
    return next((kind for kind, named in SETTINGS.items() if named.removesuffix(".0") == setting), None)


def settings_of(model: type[BaseModel]) -> dict[str, Setting]:
    """Every setting of a model by its dotted key."""
    return dict(_fields(model, ""))


def _component(component: Registered) -> Component:
    return {
        "what": component.summary,
        "paper": component.paper,
        "settings": settings_of(component.settings),
        "doc": component.doc.partition("\n\nArgs:")[0],
        "setting": SETTINGS[component.kind],
        "where": f"{_shown(component.file)}:{_line(component)}",
        "test": _test(component),
    }


def _shown(file: Path) -> str:
    package = Path(gradus.__file__).parent
    return str(file.relative_to(package) if file.is_relative_to(package) else file)


def _line(component: Registered) -> int:
    return 1 + _source(component.file).partition(f"\ndef {component.function}(")[0].count("\n") + 1


def _test(component: Registered) -> str:
    """Return the test whose name has the component's, else the first that names its function; its own file first."""
    found, own = "", f"test_{component.name}"
    files = _test_files(_TESTS.joinpath(*component.module.split(".")[1:3]))
    for file in sorted(files, key=lambda each: (each.stem != own, each)):
        for name, words in _tests(file):
            if f"_{component.name}_" in f"{name}_":
                return f"{file.relative_to(_TESTS.parent)}::{name}"
            found = found or (f"{file.relative_to(_TESTS.parent)}::{name}" if component.function in words else "")
        if file.stem == own and found:
            break
    return found


@cache
def _test_files(folder: Path) -> tuple[Path, ...]:
    return tuple(folder.rglob("test_*.py"))


@cache
def _tests(file: Path) -> list[tuple[str, frozenset[str]]]:
    parts = re.split(r"^(?=\S)", _source(file), flags=re.MULTILINE)
    named = ((_TEST.match(part), part) for part in parts)
    return [(match[1], frozenset(re.findall(r"\w+", part))) for match, part in named if match]


@cache
def _source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _engine(module: str) -> Component:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    doc = ast.get_docstring(ast.parse(_source(Path(spec.origin)))) or ""
    what = re.sub(r"^Engine `\w+`: ", "", doc.partition("\n")[0])
    where = f"{_shown(Path(spec.origin))}:1"
    return {**_EMPTY, "what": what, "doc": doc, "setting": "rollout.engine", "where": where}


def _stage(config: type[Config]) -> Component:
    doc, settings = inspect.getdoc(config) or "", settings_of(config)
    return {**_EMPTY, "what": doc.partition("\n")[0], "settings": settings, "doc": doc}


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, Setting]]:
    """Every setting of a model; of a nested model, of the first entry of a list, or of NAME in a table, dotted keys."""
    docs = model.field_docs() if issubclass(model, Config) else {}
    for name, field in model.model_fields.items():
        if name in FILLED_IN:
            continue
        key = f"{prefix}{name}"
        what = " ".join((docs.get(name) or field.description or "").split())
        inner, entry = next(models_in(field.annotation), (None, ""))
        if inner is None:
            yield key, Setting(type=_type(field.annotation) + _bounds(field), default=_default(field), what=what)
            continue
        kind, default = ("list", _default(field)) if entry == "0." else ("table", "as below")
        yield key, Setting(type=kind, default=default, what=what)
        yield from _fields(inner, f"{key}.{entry}")


def _type(annotation: object) -> str:
    """A type in words: `int`, `list of float`, `grpo | dr_grpo | rloo`."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0]) + "".join(map(_bounds, inner[1:]))
    if origin is Literal:
        return " | ".join(str(value) or "(empty)" for value in inner)
    if origin in (Union, UnionType):
        return " | ".join(_type(part) for part in inner if part is not NoneType)
    if origin in (tuple, list):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"table of {_type(inner[1])}"
    words: dict[object, str] = {str: "text", Any: "any value"}
    return words.get(annotation) or getattr(annotation, "__name__", str(annotation))


def _bounds(rules: object) -> str:
    each = rules.metadata if isinstance(rules, FieldInfo) else [rules]
    found = [(name, getattr(rule, name)) for rule in each for name in _BOUNDS if hasattr(rule, name)]
    return "".join(f", {_BOUNDS[name]} {value:,.15g}" for name, value in found)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return REQUIRED if value is PydanticUndefined else _text(value)


def _text(value: object) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, str):
        return value.replace("\n", r"\n")
    if isinstance(value, tuple | list):
        return f"[{', '.join(part.name if hasattr(part, 'name') else _text(part) for part in value)}]"
    return json.dumps(value)
