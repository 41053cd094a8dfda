"""A component loaded where it computes, its settings bound: ours and installed ones by import, a user's from its file.

A user's file is loaded once in a process, with its folder first on the import path meanwhile. Every module of the
user's that is loaded then, or later, must be one of those that the settings pinned (`refuse_unpinned`).

    number_of(chosen, Progress(round=3))     # of a schedule; one that is not ours is called in a process of its own
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from gradus.components.chosen import Chosen, ScheduleConfig, chosen_in
from gradus.components.registry import function_of, users_file
from gradus.components.settings import Config
from gradus.components.user_modules import CORRECT, Module, UserFileError, executed, named_function, stranger, watch
from gradus.data.errors import BadInputError, GradusError
from gradus.data.schedules.progress import Progress, ScheduleError
from gradus.tasks.host.processes import child_environment, die_with_parent

_LIMIT_S = 60.0
"""Time in which a schedule that is not ours returns a number."""

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


def number_of(chosen: ScheduleConfig, now: Progress) -> float:
    """Return the number of a schedule, which is the same for the same progress.

    Raise ScheduleError if its settings make none, BadInputError if a function that is not ours fails.
    """
    if chosen.is_ours:
        return float(load(chosen)(now))
    return _elsewhere(json.dumps({"chosen": chosen.model_dump(mode="json"), "now": asdict(now)}), chosen.label)


@lru_cache(maxsize=1024)
def _elsewhere(asked: str, label: str) -> float:
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid())]
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=_LIMIT_S, env=child_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        raise BadInputError(f"the schedule {label} took longer than {_LIMIT_S:.0f} s to return a number") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise BadInputError(f"the process of the schedule {label} ended with exit code {done.returncode}: {last}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise BadInputError(answer["error"], hint=answer["hint"])
    return answer["value"]


def _main() -> None:
    die_with_parent(int(sys.argv[1]))
    asked = json.load(sys.stdin)
    chosen, now = ScheduleConfig.model_validate(asked["chosen"]), asked["now"]
    now["metrics"] = {name: tuple(values) for name, values in now["metrics"].items()}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer: dict[str, object] = {"value": float(load(chosen)(Progress(**now)))}
        except ScheduleError as error:
            answer = {"error": f"the schedule {chosen.label}: {error}", "hint": ""}
        except GradusError as error:
            answer = {"error": error.message, "hint": error.hint}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
