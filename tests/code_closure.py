"""The digest of a definition of ours and of all of ours that it uses, from the source alone: nothing is imported.

    Tree(root).digest("gradus.models.objectives.advantages.grpo", {})

A definition is a top-level function, class or assignment. It uses what its names lead to: through imports, at the top
or inside functions, attributes of modules, annotations (written as text too) and texts that name a module of ours
("gradus.models.judging.judge", "module:attribute"). A module that is used as a value counts whole; statements at the
top of a module that define nothing count with everything in it. What a value's methods do is covered because its class
is named by an annotation or a constructor somewhere along the way. The digest is that of the rooted graph of
definitions: comments, docstrings, layout, the names of definitions and of modules, and the order and place of
definitions do not enter, nor does the decorator that registers a component; names of arguments, local variables and
attributes do. Left out: what libraries do; names that are only computed at run time (see `Tree.dynamic`).
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

OURS = "gradus"
PACKAGES = ("flows", "tasks", "models", "data")
"""The folders that are parts of the package `gradus`."""
WHOLE = "*"
SETTINGS = "gradus.tasks.config"
"""Fields of settings enter an identity by their values, so that here only the methods of those classes count."""

Key = tuple[str, str]
"""A module and the name of a definition in it, or WHOLE."""


@dataclass(frozen=True)
class Outside:
    """Something of a library's, by its full name."""

    name: str


@dataclass
class Module:
    """One source file: its definitions by name, its imports by name, and the statements that define nothing."""

    name: str
    tree: ast.Module
    is_package: bool
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        for statement in self.tree.body:
            self._enter(statement)

    def _enter(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self.imports.update(self.imported(statement))
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.definitions.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
            return
        elif not is_text(statement):
            for node in ast.walk(statement):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    self.imports.update(self.imported(node))
            bound = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            bound |= {n.name for n in ast.walk(statement) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            for name in bound:
                self.definitions.setdefault(name, []).append(statement)
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or not bound:
                self.effects.append(statement)

    def imported(self, statement: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str]]:
        """Local name -> (module, attribute); the attribute is empty where the module itself is meant."""
        if isinstance(statement, ast.Import):
            return {
                alias.asname or alias.name.partition(".")[0]: (
                    alias.name if alias.asname else alias.name.partition(".")[0],
                    "",
                )
                for alias in statement.names
            }
        base = statement.module or ""
        if statement.level:
            parts = self.name.split(".")
            parts = parts[: len(parts) - statement.level + self.is_package]
            base = ".".join([*parts, *([base] if base else [])])
        assert all(alias.name != "*" for alias in statement.names), f"{self.name} imports * from {base}"
        return {alias.asname or alias.name: (base, alias.name) for alias in statement.names}


@cache
def _module(name: str, text: str, is_package: bool) -> Module:
    """A module, parsed once for each text: the trees of a test differ in a file or two."""
    return Module(name, ast.parse(text), is_package)


@dataclass
class Definition:
    """A definition without what does not matter, and the definitions that it uses, in the order they occur."""

    body: Any
    uses: list[Key]


class Tree:
    """The packages below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._definitions: dict[Key, Definition] = {}
        self.dynamic: set[Key] = set()
        """Definitions seen so far that import modules by computed names."""

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Every module of ours by its dotted name."""
        found = {OURS: _module(OURS, "", is_package=True)}
        for base, package in (*((self._root, name) for name in PACKAGES), (self._root / "src" / OURS, "components")):
            for path in sorted((base / package).rglob("*.py")):
                parts = path.relative_to(base).with_suffix("").parts
                is_package = parts[-1] == "__init__"
                name = ".".join((OURS, *(parts[:-1] if is_package else parts)))
                found[name] = _module(name, path.read_text(encoding="utf-8"), is_package)
        return found

    def key(self, dotted: str) -> Key:
        """The definition, or whole module, that a dotted name means."""
        found = self.resolve_dotted(dotted)
        assert found is not None, f"there is no {dotted}"
        return found

    def digest(self, dotted: str, limits: Mapping[str, str]) -> str:
        """The digest of what `closure` finds."""
        text = json.dumps(self.closure(self.key(dotted), limits)[0], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def closure(self, root: Key, limits: Mapping[str, str]) -> tuple[list[Any], list[Key], set[str]]:
        """The definitions that `root` leads to, as JSON values, by key, and the limits that were reached.

        `limits` maps dotted names of definitions or modules to labels: what they name is not entered.
        """
        order: list[Key] = []
        seen: dict[Key, int] = {}
        stack = [root]
        while stack:
            key = stack.pop()
            if key not in seen and (key == root or self._limit(key, limits) is None):
                seen[key] = len(order)
                order.append(key)
                stack.extend(reversed(self.definition(key).uses))
        reached: set[str] = set()
        found: list[Any] = []
        for key in order:
            definition = self.definition(key)
            labels = [None if used == root else self._limit(used, limits) for used in definition.uses]
            reached.update(label for label in labels if label is not None)
            edges = [seen[u] if label is None else label for u, label in zip(definition.uses, labels, strict=True)]
            found.append([definition.body, edges])
        return found, order, reached

    @staticmethod
    def _limit(key: Key, limits: Mapping[str, str]) -> str | None:
        module, name = key
        parts = module.split(".")
        candidates = [f"{module}.{name}", *(".".join(parts[:end]) for end in range(len(parts), 0, -1))]
        return next((limits[candidate] for candidate in candidates if candidate in limits), None)

    def definition(self, key: Key) -> Definition:
        """One definition, read once."""
        if key not in self._definitions:
            self._definitions[key] = self._read(key)
        return self._definitions[key]

    def _read(self, key: Key) -> Definition:
        module = self.modules[key[0]]
        reader = _Reader(self, module, key)
        if key[1] == WHOLE:
            for name in sorted(module.definitions):
                reader.use((module.name, name))
            return Definition([], reader.uses)
        body = [reader.read(statement) for statement in module.definitions[key[1]]]
        if module.effects:
            body.append([reader.read(statement) for statement in module.effects])
        return Definition(body, reader.uses)

    def resolve(self, module: Module, dotted: str, local: Mapping[str, tuple[str, str]]) -> Key | Outside | None:
        """What a dotted name in a module means; None for a builtin, a local variable or an attribute of a value."""
        head, _, rest = dotted.partition(".")
        if head in local or head in module.imports:
            base, attribute = local.get(head) or module.imports[head]
            full = ".".join(filter(None, (base, attribute, rest)))
            if base.partition(".")[0] == OURS:
                return self.resolve_dotted(full) or (None if rest else (base, WHOLE))
            return Outside(full)
        return (module.name, head) if head in module.definitions and not rest else None

    def resolve_dotted(self, dotted: str) -> Key | None:
        """The definition or module of ours with that full name, followed through imports; None if there is none."""
        if dotted in self.modules:
            return dotted, WHOLE
        name, _, attribute = dotted.rpartition(".")
        if name not in self.modules:
            return None
        module = self.modules[name]
        if attribute in module.definitions:
            return name, attribute
        if attribute in module.imports:
            found = self.resolve(module, attribute, {})
            return found if isinstance(found, tuple) else None
        return None


class _Reader:
    """Turns a definition's syntax tree into JSON values, its names into references."""

    def __init__(self, tree: Tree, module: Module, key: Key) -> None:
        self._tree = tree
        self._module = module
        self._key = key
        self._local: dict[str, tuple[str, str]] = {}
        self.uses: list[Key] = []

    def use(self, key: Key) -> list[Any]:
        if key not in self.uses:
            self.uses.append(key)
        return ["@", self.uses.index(key)]

    def read(self, statement: ast.stmt) -> Any:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._local.update(self._module.imported(node))
        return self._value(statement)

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._value(part) for part in value if not is_text(part) and not self._is_our_import(part)]
        if not isinstance(value, ast.AST):
            return value
        if isinstance(value, ast.Name | ast.Attribute):
            named = self._named(value)
            if named is not None:
                return named
        if isinstance(value, ast.Constant):
            return self._constant(value.value)
        return [type(value).__name__, *(self._fields(value))]

    def _fields(self, node: ast.AST) -> Iterator[Any]:
        for name, value in ast.iter_fields(node):
            if value is None or value == [] or name in ("ctx", "type_comment", "kind"):
                continue
            is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if is_definition and name == "name" and value == self._key[1]:
                continue
            if isinstance(node, ast.ClassDef) and name == "body" and _is_settings(self._module.name):
                yield [name, self._value([part for part in value if not isinstance(part, ast.AnnAssign)])]
            elif name == "decorator_list":
                others = [each for each in value if not (isinstance(each, ast.Call) and _called(each) == "component")]
                if others:
                    yield [name, self._value(others)]
            elif name in ("annotation", "returns"):
                yield [name, self._value(_unquoted(value))]
            elif isinstance(node, ast.Call) and name == "args" and _called(node) == "cast":
                yield [name, self._value([_unquoted(value[0]), *value[1:]])]
            else:
                yield [name, self._value(value)]

    def _named(self, node: ast.Name | ast.Attribute) -> Any:
        dotted = _dotted(node)
        if _last(dotted) in ("import_module", "__import__"):
            self._tree.dynamic.add(self._key)
        found = self._tree.resolve(self._module, dotted, self._local) if dotted else None
        if isinstance(found, Outside):
            return ["outside", found.name]
        return self.use(found) if found is not None else None

    def _constant(self, value: Any) -> Any:
        if isinstance(value, str) and "." in value and value.partition(".")[0] == OURS:
            found = self._tree.resolve_dotted(value.replace(":", "."))
            if found is not None:
                return self.use(found)
        return [type(value).__name__, repr(value)]

    def _is_our_import(self, node: Any) -> bool:
        if isinstance(node, ast.Import):
            return all(alias.name.partition(".")[0] == OURS for alias in node.names)
        return isinstance(node, ast.ImportFrom) and (bool(node.level) or (node.module or "").partition(".")[0] == OURS)


def is_text(node: Any) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_settings(module: str) -> bool:
    return module == SETTINGS or module.startswith(SETTINGS + ".")


def _called(node: ast.Call) -> str:
    return _last(_dotted(node.func)) if isinstance(node.func, ast.Name | ast.Attribute) else ""


def _unquoted(node: ast.expr) -> ast.expr:
    is_quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return ast.parse(node.value, mode="eval").body if is_quoted else node


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of names and attributes; empty where anything else is in it."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _last(dotted: str) -> str:
    return dotted.rpartition(".")[2]
