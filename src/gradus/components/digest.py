"""The digest of a component: its own source and that of the helpers that it uses, without comments, texts and types.

    code_digest(find("loss", "clip"))     # 16 hexadecimal digits

Helpers are what a function names in its own module and in modules of the component folders, and what those name. What
comes from elsewhere (libraries, other modules of Gradus) counts by its name.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import cast

from gradus.components.description import Component, is_declaration
from gradus.components.registry import FOLDERS, ROOT

_FOLDERS = frozenset("/".join(folder.split("/")[:2]) for folder in FOLDERS.values())
_Definitions = dict[str, ast.stmt | tuple[str, str]]
"""Definitions of a module's names: a statement, or a module and a name that is imported from it."""


@cache
def code_digest(component: Component, root: Path = ROOT) -> str:
    """Return the digest of a component of ours and of its helpers; `root` is the folder of the package."""
    found: dict[tuple[Path, str], str] = {}
    _follow(component.file, component.function, root, found)
    return hashlib.sha256("\n".join(sorted(found.values())).encode()).hexdigest()[:16]


def _follow(file: Path, name: str, root: Path, found: dict[tuple[Path, str], str]) -> None:
    """Add the source of a name of a module, and of all that it leads to; an unknown name is left out."""
    meaning = definitions(file).get(name)
    if meaning is None or (file, name) in found:
        return
    if isinstance(meaning, tuple):
        module, original = meaning
        found[file, name] = f"{name} is {module} {original}" if name != original else ""
        inside, whole = _module(module, root), _module(f"{module}.{original}", root)
        if whole is not None:
            for each in definitions(whole):
                _follow(whole, each, root, found)
        elif inside is not None:
            _follow(inside, original, root, found)
        else:
            found[file, name] = f"{name} is {module} {original}"
        return
    found[file, name] = ast.dump(meaning)
    for node in ast.walk(meaning):
        if isinstance(node, ast.Name):
            _follow(file, node.id, root, found)


def _module(name: str, root: Path) -> Path | None:
    """Return the file of a module in the component folders."""
    path = name.removeprefix("gradus.").replace(".", "/")
    if not any(f"{path}/".startswith(f"{folder}/") for folder in _FOLDERS):
        return None
    return next((file for file in (root / f"{path}.py", root / path / "__init__.py") if file.is_file()), None)


@cache
def definitions(file: Path) -> _Definitions:
    """Return what each name of a module stands for, without docstrings, annotations and declarations of components."""
    found: _Definitions = {}
    for node in ast.parse(file.read_bytes()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = cast("ast.stmt", _Bare().visit(node))
            case ast.ImportFrom(module=str(module)):
                found |= {each.asname or each.name: (module, each.name) for each in node.names}
            case ast.Import():
                found |= {each.asname or each.name.partition(".")[0]: (each.name, "") for each in node.names}
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
                found |= dict.fromkeys(names, cast("ast.stmt", _Bare().visit(node)))
            case _:
                continue
    return found


class _Bare(ast.NodeTransformer):
    """Takes from a tree what no result depends on."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [each for each in node.decorator_list if not is_declaration(each)]
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return ast.Assign([node.target], node.value or ast.Constant(...))

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if is_text else self.generic_visit(node)
