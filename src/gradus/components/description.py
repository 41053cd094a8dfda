"""Description of a component and its settings, read from its source: nothing is imported, nothing is run.

described(Path("mine.py"))      # [Component(kind="filter", name="short", settings=<model>, ...)]
function_in(Path("mine.py"), "short", "filter")
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import AfterValidator, Field, StringConstraints, create_model

from gradus.components import INCIDENTAL, KINDS, OF_ROWS, Declaration, Kind
from gradus.components.settings import FILLED_IN, Exact
from gradus.components.templates import Template

_TYPES: Mapping[str, Any] = {"bool": bool, "int": int, "float": float, "str": str}
_RULES: Mapping[str, Any] = {
    rule.__name__: rule for rule in (Ge, Gt, Le, Lt, MinLen, MaxLen, StringConstraints, Template)
}
_ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)
_RESERVED = frozenset({"name", *FILLED_IN, "weight", "decides", "variables"})
"""Keys that stand beside a component's settings in a recipe."""

type_error = "write its type as bool, int, float, str, Literal[...], tuple[T, ...] or Annotated[T, Ge(0)]"


class DescriptionError(ValueError):
    """A file or function that cannot be a component; `known` are the names of a file that lacks the function."""

    def __init__(self, message: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.known = known


@dataclass(frozen=True, kw_only=True)
class Component(Declaration):
    """One component as its source declares it."""

    file: Path
    function: str
    doc: str = ""
    settings: type[Exact] = Exact
    incidental: frozenset[str] = frozenset()
    """Names of settings on which no result depends."""
    arguments: tuple[str, ...] = ()
    """Names of its positional arguments."""
    module: str = ""
    """Dotted name of the module; empty for a file of a user's."""
    distribution: str = ""
    """The installed distribution that provides it; empty for ours and for a user's file."""

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return self.doc.partition("\n")[0]


class _Source:
    """One parsed file."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.names = set(_names(tree))
        self.constants: dict[str, ast.expr] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.refused: dict[str, str] = {}
        """Functions that cannot be called as a component, by name, with the reason."""
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (reason := _refusal(node)):
                self.refused[node.name] = f"line {node.lineno}: {node.name} {reason}"
            match node:
                case ast.FunctionDef():
                    self.functions[node.name] = node
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.constants[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.constants[name] = value
                case _:
                    continue


def described(path: Path) -> list[Component]:
    """Return every component that a file declares, in the order of the file; raise DescriptionError."""
    source = _source(path)
    return [
        _component(source, function, call)
        for function in source.functions.values()
        if (call := _declaration(function)) is not None
    ]


def function_in(path: Path, name: str, kind: Kind) -> Component:
    """Return a function of a file as a component of a kind; DescriptionError if it is missing, or of another."""
    source = _source(path)
    function = source.functions.get(name)
    if name in source.refused and name not in source.constants:
        raise DescriptionError(f"{path} {source.refused[name]}; components are plain functions")
    if function is None:
        if isinstance(source.constants.get(name), ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set):
            raise DescriptionError(f"{path}: {name} is a value; components are plain functions")
        if source.names & {name, "*", "globals", "exec", "__getattr__"}:
            return Component(kind, name=f"{path}:{name}", file=path, function=name)
        raise DescriptionError(f"{path} has no function {name!r}", tuple(sorted(source.names)) or ("",))
    call = _declaration(function)
    found = _component(source, function, call, kind)
    if found.kind != kind:
        raise DescriptionError(f"{path} line {function.lineno}: {name} is registered as {found.kind}, not as {kind}")
    return found


def _source(path: Path) -> _Source:
    try:
        stat = path.stat()
        return _parsed(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise DescriptionError(f"{path} cannot be read: {error.strerror}") from None


@lru_cache(maxsize=512)
def _parsed(path: Path, _mtime_ns: int, _size: int) -> _Source:
    try:
        return _Source(path, ast.parse(path.read_bytes()))
    except SyntaxError as error:
        where = f"{path} line {error.lineno}" if error.lineno else str(path)
        raise DescriptionError(f"{where} is not valid Python: {error.msg}") from None
    except ValueError as error:
        raise DescriptionError(f"{path} is not valid Python: {error}") from None


def _refusal(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """Return the reason that a definition returns no answer; empty if it does, or if a decorator may see to it."""
    match node:
        case ast.ClassDef() if any(isinstance(each, ast.FunctionDef) and each.name == "__call__" for each in node.body):
            return f"is a class (write `made = {node.name}()` below it and name that)"
        case ast.AsyncFunctionDef() if all(map(is_declaration, node.decorator_list)):
            return "is an async function (a plain one may call asyncio.run)"
        case ast.FunctionDef() if all(map(is_declaration, node.decorator_list)) and _yields(node):
            return "yields its values (return a list of them)"
        case _:
            return ""


def _yields(function: ast.FunctionDef) -> bool:
    """Return whether a function is a generator; inner definitions do not count."""
    nodes: list[ast.AST] = [*function.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return False


def _names(tree: ast.Module) -> Iterator[str]:
    """Every name that a module could have: what it defines, assigns or imports anywhere, and what it calls."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name):
                yield name
            case ast.alias(name=name, asname=alias):
                yield alias or name.partition(".")[0]
            case _:
                continue


def _declaration(function: ast.FunctionDef) -> ast.Call | None:
    return next((n for n in function.decorator_list if isinstance(n, ast.Call) and is_declaration(n)), None)


def is_declaration(node: ast.expr) -> bool:
    """Return whether a decorator is a call of `component`."""
    if not isinstance(node, ast.Call):
        return False
    return (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == "component"


def _component(
    source: _Source, function: ast.FunctionDef, call: ast.Call | None, kind: Kind | None = None
) -> Component:
    facts = {} if call is None else _facts(source, call)
    doc = ast.get_docstring(function) or ""
    taken = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if facts.get("kind", kind) in OF_ROWS and len(taken) != 1 and function.args.vararg is None:
        raise DescriptionError(
            f"{source.path} line {function.lineno}: {function.name} takes ({', '.join(taken)}), and "
            f"{facts.get('kind', kind)} is called with one argument, the rows: write def {function.name}(rows, *, ...)"
        )
    of_rows = taken in (["rows"], ["rows", "rng"]) or function.args.vararg is not None
    if facts.get("kind", kind) == "shape" and not of_rows:
        raise DescriptionError(
            f"{source.path} line {function.lineno}: {function.name} takes ({', '.join(taken)}), and a shape is called "
            f"with rows, and a generator if it draws: write def {function.name}(rows, *, ...) or (rows, rng, *, ...)"
        )
    settings, incidental = _settings(source, function, doc)
    return Component(
        facts.pop("kind", kind),
        name=facts.pop("name", "") or function.name,
        file=source.path,
        function=function.name,
        doc=doc,
        settings=settings,
        incidental=incidental,
        arguments=tuple(taken),
        **facts,
    )


def _facts(source: _Source, call: ast.Call) -> dict[str, Any]:
    where = f"{source.path} line {call.lineno}"
    try:
        found = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        if call.args:
            found["kind"] = ast.literal_eval(call.args[0])
    except ValueError:
        raise DescriptionError(f"{where}: the arguments of @component must be literals") from None
    known = {each.name for each in fields(Declaration)}
    if odd := sorted(found.keys() - known):
        raise DescriptionError(f"{where}: @component has no argument {odd[0]}; it has {', '.join(sorted(known))}")
    if found.get("kind") not in KINDS:
        raise DescriptionError(f"{where}: there is no kind {found.get('kind')!r}: it is one of {', '.join(KINDS)}")
    return found


def _settings(source: _Source, function: ast.FunctionDef, doc: str) -> tuple[type[Exact], frozenset[str]]:
    """The model of the keyword-only arguments, and the names of those marked as incidental."""
    documented = {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(doc.partition("Args:")[2])}
    fields: dict[str, Any] = {}
    incidental: set[str] = set()
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        where = f"{source.path} line {argument.lineno}: the setting {argument.arg} of {function.name}"
        if argument.arg in _RESERVED:
            raise DescriptionError(f"{where} has a name that recipes use for something else: rename it")
        annotation = _annotation(source, argument.annotation, where)
        if INCIDENTAL in getattr(annotation, "__metadata__", ()):
            incidental.add(argument.arg)
        value = ... if default is None else _value(source, default, where)
        fields[argument.arg] = (annotation, Field(default=value, description=documented.get(argument.arg, "")))
    if not fields:
        return Exact, frozenset()
    return create_model(f"{function.name}_settings", __base__=Exact, **fields), frozenset(incidental)


def _value(source: _Source, node: ast.expr, where: str) -> Any:
    if isinstance(node, ast.Name) and node.id in source.constants:
        node = source.constants[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise DescriptionError(f"{where} has a default that is not a literal") from None


def _annotation(source: _Source, node: ast.expr | None, where: str) -> Any:  # noqa: C901, PLR0911 - one case a form
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str() as text):
            return _annotation(source, ast.parse(text, mode="eval").body, where)
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case ast.Name(id=name) if name in source.constants:
            return _annotation(source, source.constants[name], where)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_annotation(source, left, where), _annotation(source, right, where)]  # noqa: UP007 - of values
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            return Literal[tuple(_value(source, part, where) for part in _parts(inner))]
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return Optional[_annotation(source, inner, where)]  # noqa: UP045 - of a value
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[inner, ast.Constant(value=end)])) if (
            end is ...
        ):
            return tuple[_annotation(source, inner, where), ...]
        case ast.Subscript(value=ast.Name(id="tuple"), slice=inner):
            return tuple[tuple(_annotation(source, part, where) for part in _parts(inner))]
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *rules])):
            found = tuple(_rule(source, rule, where) for rule in rules)
            return Annotated[(_annotation(source, inner, where), *found)]
        case _:
            raise DescriptionError(f"{where} has no type that can be read: {type_error}")


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _rule(source: _Source, node: ast.expr, where: str) -> Any:
    match node:
        case ast.Name(id="INCIDENTAL"):
            return INCIDENTAL
        case ast.Name(id="REGEX"):
            return AfterValidator(_regex)
        case ast.Call(func=ast.Name(id=name)) if name in _RULES:
            values = [_value(source, part, where) for part in node.args]
            named = {str(word.arg): _value(source, word.value, where) for word in node.keywords}
            return _RULES[name](*values, **named)
        case _:
            raise DescriptionError(f"{where} has a bound that cannot be read: it is one of {', '.join(_RULES)}")


def _regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return pattern
