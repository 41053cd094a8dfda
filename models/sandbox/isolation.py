"""A command of ours in the sandbox: no network, and a view of the installed packages and of some files alone."""

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import gradus
from gradus.models.sandbox.groups import OWN_BYTES, Group, made
from gradus.models.sandbox.inside.cell import SCRATCH
from gradus.models.sandbox.launchers import (
    BWRAP,
    SYSTEM_FOLDERS,
    Namespaces,
    entering,
    interpreter_and_folders,
    shown,
)
from gradus.models.sandbox.sandbox import Sandbox

_DISK_BYTES = 1024**3
"""Files that such a command may write, in memory."""
_NUM_PROCESSES = 256
"""Processes and threads of such a command at one time, where a control group can be made."""


@functools.cache
def available_backend() -> str:
    """Return the name of the backend that works on this machine; SandboxUnavailableError if none does."""
    with Sandbox() as sandbox:
        return sandbox.backend


def group_of(memory_bytes: int) -> Group:
    """Return a control group for a confined command whose memory may be `memory_bytes`, without its files."""
    return made(memory_bytes + _DISK_BYTES + OWN_BYTES, _NUM_PROCESSES)


def confined(command: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return a command that runs another one in the sandbox, where it sees `files`, read-only.

    SandboxUnavailableError if this machine has no sandbox.
    """
    package = Path(gradus.__file__).parent
    ours = [str(package), *(str(each.resolve()) for each in package.iterdir() if each.is_symlink())]
    folders = [*SYSTEM_FOLDERS, *dict.fromkeys((sys.base_prefix, sys.prefix)), *ours, *files]
    if available_backend() == Namespaces.name:
        interpreter, _ = interpreter_and_folders("")
        return [*entering(interpreter, "confined"), json.dumps({"folders": folders, "disk": _DISK_BYTES}), *command]
    view = [word for path in folders for word in shown(path)]
    own = ("--size", str(_DISK_BYTES), "--tmpfs", SCRATCH, "--chdir", SCRATCH)
    read_only = ("--remount-ro", "/", "--remount-ro", "/dev")
    variables = ("--setenv", "HOME", SCRATCH, "--setenv", "TMPDIR", SCRATCH)
    return ["bwrap", *BWRAP, *view, "--proc", "/proc", "--dev", "/dev", *own, *read_only, *variables, "--", *command]
