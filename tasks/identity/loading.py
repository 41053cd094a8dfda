"""A component loaded where it computes, its settings bound: ours and installed ones by import, a user's from its file.

A user's file is loaded once in a process, with its folder first on the import path meanwhile. Every module of the
user's that is loaded then, or later, must be one of those that the settings pinned (`refuse_unpinned`).
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from gradus.components.chosen import Chosen, chosen_in
from gradus.components.registry import function_of, users_file
from gradus.components.settings import Config
from gradus.components.user_modules import CORRECT, Module, UserFileError, executed, named_function, stranger, watch
from gradus.data.errors import BadInputError

_LOADED: dict[tuple[Path, str], ModuleType] = {}
"""A user's files by path and digest."""

_MODULES: list[Module] = []
"""Every module of a user's that this process loaded."""

_PINS: set[tuple[str, str]] = set()
"""Name and SHA-256 of every module that the components which this process loaded are pinned with."""


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
    _PINS.update(chosen.modules.items())
    return partial(checked(_function(path, name, chosen.source_sha256), chosen.kind, name, path), **_bound(chosen))


def has_users_code() -> bool:
    """Return whether this process loaded a user's file."""
    return bool(_LOADED)


def refuse_unpinned(config: Config) -> None:
    """Raise BadInputError if a component loaded a module of the user's that the identity does not hold."""
    for each in chosen_in(config):
        if not each.is_users or each.kind == "reward":
            continue
        for module in _MODULES:
            wanted = each.modules.get(module.name, module.sha256)
            if wanted != module.sha256 or (module.name, module.sha256) not in _PINS:
                raise BadInputError(stranger(users_file(each.name)[0], module, each.modules), hint=CORRECT)


def _bound(chosen: Chosen) -> dict[str, object]:
    """The settings as the function takes them: what JSON made a list of is a tuple again."""
    return dict(chosen.component.settings(**chosen.settings))


def _function(path: Path, name: str, sha256: str) -> Callable[..., Any]:
    if not _LOADED:
        watch(_MODULES.append)
    folder = str(path.parent)
    try:
        if not sha256 or (path, sha256) not in _LOADED:
            sys.path.insert(0, folder)
            try:
                _LOADED[path, sha256] = executed(path, sha256)
            finally:
                sys.path.remove(folder)
                sys.path.append(folder)  # behind what is installed: for what its functions import when they are called
        return named_function(_LOADED[path, sha256], path, name)
    except UserFileError as error:
        raise BadInputError(str(error), hint=error.hint) from None
