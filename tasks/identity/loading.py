"""A component loaded where it computes, its settings bound: ours and installed ones by import, a user's from its file.

    load(config.advantage)(batch)          # grpo(batch, std_eps=0.0001)

A user's file is loaded once in a process, with its folder first on the import path meanwhile. Every module of the
user's that is loaded then, or later, must be one of those that the settings pinned (`unpinned` says which are not).
"""

import hashlib
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from gradus.components.chosen import Chosen
from gradus.components.registry import function_of, users_file
from gradus.data.errors import BadInputError
from gradus.models.rewards.imports import Module, watch
from gradus.models.rewards.user import describe, line_of

HINT = "correct the file and run the same command again"

_LOADED: dict[tuple[str, str], ModuleType] = {}
"""A user's files by path and digest."""

_MODULES: list[Module] = []
"""Every module of a user's that this process loaded."""


def load(chosen: Chosen) -> Callable[..., Any]:
    """Return the function of a component with its settings bound; raise BadInputError if a user's file fails.

    Calls of a component that is not ours are checked (`checked`).
    """
    if chosen.is_ours:
        return partial(function_of(chosen.component), **_bound(chosen))
    from gradus.tasks.identity.component_call import checked  # noqa: PLC0415 - loads Arrow's functions

    if not chosen.is_users:
        found = chosen.component
        return partial(checked(function_of(found), found.kind, found.name, found.file), **_bound(chosen))
    path, name = users_file(chosen.name)
    function = getattr(_module(path, chosen.source_sha256), name, None)
    if not callable(function):
        raise BadInputError(f"{path} has no function {name!r}", hint=HINT)
    return partial(checked(function, chosen.kind, name, path), **_bound(chosen))


def unpinned(chosen: list[Chosen]) -> dict[str, str]:
    """Return name and file of every module of the user's that was loaded and that none of the components pinned."""
    pinned = {digest for each in chosen for digest in (each.source_sha256, *each.modules.values())}
    return {module.name: module.path for module in _MODULES if module.sha256 not in pinned}


def _bound(chosen: Chosen) -> dict[str, object]:
    """The settings as the function takes them: what JSON made a list of is a tuple again."""
    return dict(chosen.component.settings(**chosen.settings))


def _module(path: Path, sha256: str) -> ModuleType:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}", hint=HINT) from None
    if sha256 and found != sha256:
        raise BadInputError(f"{path} was changed while the command ran", hint="run the same command again")
    if (str(path), found) not in _LOADED:
        _LOADED[str(path), found] = _executed(path, found)
    return _LOADED[str(path), found]


def _executed(path: Path, digest: str) -> ModuleType:
    if not _LOADED:
        watch(_MODULES.append)
    name = f"gradus_user_{digest[:12]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInputError(f"{path} is not a Python file", hint="write path/to/file.py:function")
    module = module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's file raises
        del sys.modules[name]
        at = f"{path}{line_of(error.__traceback__, path)}"
        raise BadInputError(f"{at} fails to load: {describe(error)}", hint=HINT) from None
    finally:
        sys.path.remove(folder)
        sys.path.append(folder)  # behind what is installed: for what its functions import when they are called
    return module
