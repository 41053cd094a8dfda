"""Commands of ours in the sandbox: they reach no network and see installed packages and the files that they need."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import gradus
from gradus.models.sandbox.groups import OWN_BYTES, Group, made
from gradus.models.sandbox.inside.cell import SCRATCH
from gradus.models.sandbox.launchers import BWRAP, SYSTEM_FOLDERS, Namespaces, entering, interpreter_and_folders, shown
from gradus.models.sandbox.sandbox import available_backend

_MAX_FILES_BYTES = 1024 * 1024 * 1024
"""Files that a command may write, in memory."""
_MAX_PROCESSES = 256
"""Processes and threads of a command at one time, where a control group can be made."""


def group_of(memory_bytes: int) -> Group:
    """Return a control group for a confined command whose memory may be `memory_bytes`, without its files."""
    return made(memory_bytes + _MAX_FILES_BYTES + OWN_BYTES, _MAX_PROCESSES)


def confined(command: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return a command that runs another one in the sandbox: no network, a view of installed packages and of `files`.

    All are read-only. SandboxUnavailableError if this machine has no sandbox.
    """
    package = Path(gradus.__file__).parent
    ours = [str(package), *(str(each.resolve()) for each in package.iterdir() if each.is_symlink())]
    folders = [*SYSTEM_FOLDERS, *dict.fromkeys((sys.base_prefix, sys.prefix)), *ours, *files]
    if available_backend() == Namespaces.name:
        view = {"folders": folders, "disk": _MAX_FILES_BYTES}
        return [*entering(interpreter_and_folders("")[0], "run_confined"), json.dumps(view), *command]
    return [
        *("bwrap", *BWRAP, *(word for path in folders for word in shown(path)), "--proc", "/proc", "--dev", "/dev"),
        *("--size", str(_MAX_FILES_BYTES), "--tmpfs", SCRATCH, "--chdir", SCRATCH),
        *("--remount-ro", "/", "--remount-ro", "/dev"),
        *("--setenv", "HOME", SCRATCH, "--setenv", "TMPDIR", SCRATCH, "--", *command),
    ]
