"""Modules that a user's reward loads from outside the installed packages, with their content.

    watch(report)                # from here on `report` is called with every such module, before its code runs
    look_ahead(function_file, report)

In a judge process only, since looking ahead may run the packages that hold a module. A module counts as the user's own
unless it lies in the standard library, in a site-packages folder or in Gradus. What is reported is the digest of the
bytes that are executed: cached bytecode, which Python trusts by a file's size and second, is not used for them.
Covered: source, bytecode and extension modules and zip archives, whether imported, imported by a computed name or
loaded from a path. Not covered: files that the reward reads as data or executes as text, and what its own child
processes import after an exec.
"""

import ast
import hashlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from zipimport import zipimporter

import gradus

OUR_PACKAGES = ("flows", "tasks", "models", "data")
"""The parts of the package `gradus`; in a checkout, links to folders elsewhere."""


@dataclass(frozen=True)
class Module:
    """A module of the user's: the name it was loaded by, its file and the SHA-256 of that."""

    name: str
    path: str
    sha256: str


Report = Callable[[Module], None]


def watch(report: Report) -> None:
    """Call `report` with every module of the user's that this process loads from now on, once for each content."""
    once = _Once(report)
    _watch_source(once)
    _watch_bytecode(once)
    _watch_extensions(once)
    _watch_archives(once)


def look_ahead(path: Path, loaded: list[Module], report: Report) -> set[str]:
    """Report the modules that files loaded so far name in import statements not yet reached, and what those name.

    `path` is the file of the reward, `loaded` what was reported so far. Return the installed packages that any of the
    files names, by the name that is imported. An import that cannot be resolved is left out.
    """
    once, packages = _Once(report), set[str]()
    queue = [(str(path), "")]
    queue += [(module.path, _package_of(module.name)) for module in loaded]
    seen = {file for file, _ in queue}
    while queue:
        file, package = queue.pop()
        for name in imported_names(file, package):
            top = name.partition(".")[0]
            spec = _found(top)
            if spec is None or top in sys.stdlib_module_names:
                continue
            if spec.origin is not None and spec.has_location and is_installed(spec.origin):
                packages.add(top)
                continue
            spec = _found(name)
            if spec is None or spec.origin is None or not spec.has_location or spec.origin in seen:
                continue
            seen.add(spec.origin)
            if not is_installed(spec.origin) and Path(spec.origin).is_file():  # what archives hold is seen when loaded
                once(Module(name, spec.origin, _sha256(Path(spec.origin).read_bytes())))
                queue.append((spec.origin, spec.parent or ""))
    return packages


@cache
def is_installed(path: str) -> bool:
    """Return whether a file belongs to the standard library, to an installed package or to Gradus."""
    real = os.path.realpath(path)
    return any(real.startswith(folder + os.sep) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    ours = Path(gradus.__file__).parent
    folders = [
        *(paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(str(ours / package) for package in OUR_PACKAGES),
        str(ours),
    ]
    return tuple({os.path.realpath(folder) for folder in folders})


class _Once:
    """Reports every content once, however often it is loaded."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._seen: set[Module] = set()

    def __call__(self, module: Module) -> None:
        if module not in self._seen:
            self._seen.add(module)
            self._report(module)


def _watch_source(report: Report) -> None:
    usual = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if is_installed(path):
            return usual(self, fullname)
        source = self.get_data(path)
        report(Module(fullname, path, _sha256(source)))
        return self.source_to_code(source, path)

    SourceFileLoader.get_code = get_code


def _watch_bytecode(report: Report) -> None:
    usual = SourcelessFileLoader.get_code

    def get_code(self: SourcelessFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if not is_installed(path):
            report(Module(fullname, path, _sha256(self.get_data(path))))
        return usual(self, fullname)

    SourcelessFileLoader.get_code = get_code


def _watch_extensions(report: Report) -> None:
    usual = ExtensionFileLoader.create_module

    def create_module(self: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
        path = self.get_filename(spec.name)
        if not is_installed(path):
            report(Module(spec.name, path, _sha256(Path(path).read_bytes())))
        return usual(self, spec)

    ExtensionFileLoader.create_module = create_module


def _watch_archives(report: Report) -> None:
    usual = zipimporter.get_code

    def get_code(self: zipimporter, fullname: str) -> CodeType:
        if not is_installed(self.archive):
            report(Module(fullname, self.archive, _sha256(Path(self.archive).read_bytes())))
        return usual(self, fullname)

    zipimporter.get_code = get_code


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _package_of(name: str) -> str:
    """Return the package at which a relative import in a loaded module starts."""
    module = sys.modules.get(name)
    return (module.__package__ or "") if module is not None else ""


def imported_names(file: str, package: str) -> Iterator[str]:
    """Every dotted name that a file imports anywhere, with the packages that hold it."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):  # an extension module, an archive
        return
    for node in ast.walk(tree):
        for name in _names_of(node, package):
            parts = name.split(".")
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def _names_of(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _absolute(node.module or "", node.level, package)
        return [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = node.args[0].value
        if called in ("import_module", "__import__") and isinstance(name, str) and not name.startswith("."):
            return [name]
    return []


def _absolute(name: str, level: int, package: str) -> str:
    """The full name of a relative import; empty where it leads out of the package."""
    if not level:
        return name
    parts = package.split(".") if package else []
    if level > len(parts):
        return ""
    return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])


def _found(name: str) -> ModuleSpec | None:
    """Return the file a name would be loaded from. Finding a module inside a package runs that package's own code."""
    try:
        return importlib.util.find_spec(name)
    except (Exception, SystemExit):  # noqa: BLE001 - a package that cannot be imported has no modules to find
        return None
