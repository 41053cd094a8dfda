"""Modules of a user's own: those that a file leads to by its text, and those that a process loads, with their content.

    modules, packages = modules_of(Path("mine.py"))    # {"helper": Module(...)}, {"numpy"}; nothing is run
    watch(report)                # from here on `report` is called with every such module, before its code runs

A file leads to what its import statements name, wherever they stand, to what `import_module` is called with as it
stands, and to what a list `modules` names: `modules = ["plugins.one", "../shared/two.py"]` declares what is imported by
names that only a run decides, or from folders that it puts on the path. A module counts as the user's own unless it
lies in the standard library, in a site-packages folder or in Gradus.
Not covered: modules in archives or loaded from a path by the user's own code, and files that are read as data.
"""

import ast
import hashlib
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, resolve_name
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

import gradus
from gradus.components.registry import located

_OUR_PACKAGES = ("flows", "tasks", "models", "data")
"""The parts of the package `gradus`; in a checkout, links to folders elsewhere."""


CORRECT = "correct the file and run the same command again"


@dataclass(frozen=True)
class Module:
    """A module of the user's: the name that it is imported by, its file and the SHA-256 of that."""

    name: str
    path: str
    sha256: str


Report = Callable[[Module], None]


class UserFileError(ValueError):
    """The user's file or function cannot be used."""

    def __init__(self, message: str, hint: str = CORRECT) -> None:
        super().__init__(message)
        self.hint = hint


def modules_of(path: Path) -> tuple[dict[str, Module], set[str]]:
    """Return the user's modules that a file leads to by name, and the import names of installed packages."""
    modules: dict[str, Module] = {}
    packages: set[str] = set()
    folders, queue, seen = [str(path.parent)], [(str(path), "")], {str(path)}
    while queue:
        file, package = queue.pop()
        for name, spec in _imports(file, package, folders):
            origin = spec.origin or ""
            if is_installed(origin):
                packages.add(name.partition(".")[0])
            elif name not in modules and Path(origin).is_file():
                modules[name] = Module(name, origin, _sha256(Path(origin).read_bytes()))
                queue += [(origin, spec.parent or "")] if origin not in seen else []
                seen.add(origin)
    return modules, packages


def watch(report: Report) -> None:
    """Have `report` called with every module of the user's that this process imports from now on."""
    sys.meta_path.insert(sys.meta_path.index(PathFinder), _Reading(report))


def executed(path: Path, sha256: str = "") -> ModuleType:
    """Run a file and return it as a module; raise UserFileError if that fails or is not what the command saw."""
    try:
        found = _sha256(path.read_bytes())
    except OSError as error:
        raise UserFileError(f"{path} cannot be read: {error.strerror}") from None
    if sha256 and found != sha256:
        raise UserFileError(f"{path} was changed while the command ran", hint="run the same command again")
    name = f"gradus_user_{found[:12]}"
    spec = ModuleSpec(name, loader := _Loader(name, str(path)), origin=str(path))
    spec.has_location = True
    sys.modules[name] = module = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        where = f"{path}{line_of(error.__traceback__, path)}"
        raise UserFileError(f"{where} fails to load: {describe(error)}") from error
    return module


def named_function(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    """Return a function of a file that was run; raise UserFileError if it has none of this name."""
    found = getattr(module, name, None)
    if not callable(found):
        raise UserFileError(f"{path} has no function {name!r}")
    return found


def stranger(path: Path, module: Module, pins: Mapping[str, str]) -> str:
    """Return the fault in a module that was loaded, and whose content is not among those pinned with a file."""
    if module.name in pins:
        file = Path(module.path).name
        return f"{file} was changed while the command ran, or two files import different modules named {module.name}"
    beside = path.parent.joinpath(*module.name.split("."))
    is_beside = Path(module.path) in (beside.with_suffix(".py"), beside / "__init__.py")
    named = module.name if is_beside else os.path.relpath(module.path, path.parent)
    return (
        f"{path.name} loaded {Path(module.path).name} by a name or from a folder that it computes, so that its results "
        f'were not known to depend on that: write modules = ["{named}"] in {path.name}'
    )


def line_of(trace: TracebackType | None, file: Path) -> str:
    """Return ` line N`, the last line of a file that a traceback passed; empty if it passed none."""
    lines = [line for frame, line in traceback.walk_tb(trace) if frame.f_code.co_filename == str(file)]
    return f" line {lines[-1]}" if lines else ""


def describe(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__


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
        *(str(ours / package) for package in _OUR_PACKAGES),
        str(ours),
    ]
    return tuple({os.path.realpath(folder) for folder in folders})


class _Reading(MetaPathFinder):
    """Finds what Python would find, and has the user's modules loaded from the source that is reported."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the place of a user's module; Python's own finder continues with others."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or is_installed(spec.origin or ""):
            return None
        spec.loader = _Loader(fullname, spec.loader.path, self._report)
        return spec


class _Loader(SourceFileLoader):
    """Runs the source that it reports: Python trusts cached bytecode by a file's size and second."""

    def __init__(self, name: str, path: str, report: Report = lambda _: None) -> None:
        super().__init__(name, path)
        self._report = report

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        self._report(Module(fullname, self.path, _sha256(source)))
        return self.source_to_code(source, self.path)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _imports(file: str, package: str, folders: list[str]) -> Iterator[tuple[str, ModuleSpec]]:
    """Every module that a file leads to and that can be found, by name; folders of declared files join `folders`."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):  # an extension module
        return
    for named in (name for node in ast.walk(tree) for name in _names_of(node, package)):
        declared = (Path(file).parent / named).resolve() if named.endswith(".py") else None
        if declared and str(declared.parent) not in folders:
            folders.append(str(declared.parent))
        parts = declared.stem.split(".") if declared else named.split(".")
        if parts[0] in sys.stdlib_module_names or not all(map(str.isidentifier, parts)):
            continue
        for end in range(1, len(parts) + 1):
            spec = located(name := ".".join(parts[:end]), folders)
            if spec is not None and spec.origin is not None and spec.has_location:
                yield name, spec


def _names_of(node: ast.AST, package: str) -> list[str]:
    """The dotted names, and the paths of files, that a part of a file leads to."""
    match node:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases]
        case ast.ImportFrom(module=name, names=aliases, level=level):
            try:
                base = resolve_name("." * level + (name or ""), package)
            except ImportError:  # it leads out of the package
                return []
            return [base, *(f"{base}.{alias.name}" for alias in aliases)]
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
            return [name] if called in ("import_module", "__import__") else []
        case ast.Assign(targets=[ast.Name(id="modules")], value=ast.List(elts=parts) | ast.Tuple(elts=parts)):
            return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        case _:
            return []
