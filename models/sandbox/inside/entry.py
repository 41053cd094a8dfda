"""First processes: clean interpreters that enter a user, mount and network namespace of their own.

From one, cells are forked. It sees no program and no input: a request brings the socket of a cell, which speaks to the
other side itself. The other runs a command of ours, with the rights of this user and a view of some files alone.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from gradus.models.sandbox.inside import linux
from gradus.models.sandbox.inside.cell import SCRATCH, WORK, mount_own, serve
from gradus.models.sandbox.inside.filter import refuse_calls

_IMPORTED = (
    *("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools"),
    *("math", "operator", "random", "re", "string", "typing"),
)
"""Modules that most programs import: here they are imported once."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_NEW = linux.NEW_PIDS | linux.NEW_MOUNTS | linux.NEW_HOSTNAME


def fork_cells() -> None:
    """Enter the namespaces, say so, and fork a cell for every socket that arrives, until the other side is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    config: dict[str, Any] = json.loads(sys.argv[2])
    for name in _IMPORTED:
        importlib.import_module(name)
    try:
        enter(config["folders"])
    except OSError as error:
        control.sendall(json.dumps({"failed": error.strerror or str(error)}).encode() + b"\n")
        return
    control.sendall(json.dumps({"ready": True}).encode() + b"\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            return
        if os.fork() == 0:
            control.close()
            _cell(socket.socket(fileno=descriptors[0]), config["limits"])
        os.close(descriptors[0])


def _cell(connection: socket.socket, limits: dict[str, int]) -> NoReturn:
    """Fork process 1 of new namespaces, and wait for its end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        linux.die_with_parent()
        linux.unshare(_NEW | linux.NEW_IPC)
        first = os.fork()
        if first == 0:
            linux.die_with_parent()
            mount_own("/tmp", limits["disk"])  # noqa: S108
            serve(connection, limits)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(first, 0)
    finally:
        os._exit(0)


def run_confined() -> None:
    """Enter the namespaces, run the command of the arguments, and end as it ends."""
    config, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        enter(config["folders"])
        linux.unshare(_NEW)
    except OSError as error:
        sys.exit(f"the sandbox cannot be entered: {error}")
    first = os.fork()
    if first == 0:
        _first(command, config["disk"])
    _end_like(first)


def _first(command: list[str], disk_bytes: int) -> NoReturn:
    """Process 1, which the kernel keeps from the default action of signals: the command is a child of it."""
    linux.die_with_parent()
    mount_own(SCRATCH, disk_bytes)
    child = os.fork()
    if child == 0:
        os.chdir(SCRATCH)
        os.environ.update(HOME=SCRATCH, TMPDIR=SCRATCH)
        linux.drop_rights({}, keep_user=True)
        refuse_calls()
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    _end_like(child)


def _end_like(child: int) -> NoReturn:
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            # A signal as a shell says it: process 1 cannot end by one.
            os._exit(code if code >= 0 else 128 - code)


def enter(folders: Sequence[str]) -> None:
    """Enter a user, mount and network namespace whose root shows `folders`, read-only, and an empty /tmp."""
    linux.enter_user_namespace()
    linux.unshare(linux.NEW_MOUNTS | linux.NEW_NETWORK | linux.NEW_IPC)
    linux.mount("none", "/", "", linux.REC | linux.PRIVATE)
    # A file system of our own over /tmp: in it a place for the old root and one for the new.
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.NOSUID | linux.NODEV, "mode=755")  # noqa: S108
    Path("/tmp/old").mkdir()  # noqa: S108
    Path("/tmp/new").mkdir()  # noqa: S108
    linux.pivot_root("/tmp", "/tmp/old")  # noqa: S108
    linux.mount("tmpfs", "/new", "tmpfs", linux.NOSUID | linux.NODEV, "mode=755")
    linux.bind_view(folders, "/old", "/new")
    for name in _DEVICES:
        linux.bind(Path("/old/dev", name), Path("/new/dev", name))
    linux.bind(Path("/old/proc"), Path("/new/.proc"))
    for name in ("tmp", "proc", "var", "etc", SCRATCH.strip("/")):
        Path("/new", name).mkdir(exist_ok=True)
    Path("/new/dev/shm").symlink_to("/tmp")  # noqa: S108
    Path("/new/var/tmp").symlink_to("/tmp")  # noqa: S108
    Path("/new/dev/fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        Path("/new/dev", name).symlink_to(f"/proc/self/fd/{number}")
    account = f"program:x:{linux.INNER_ID}:{linux.INNER_ID}::{WORK}:/bin/sh\n"
    Path("/new/etc/passwd").write_text(account, encoding="utf-8")
    Path("/new/.old").mkdir()
    linux.pivot_root("/new", "/new/.old")
    linux.detach("/.old")
    Path("/.old").rmdir()
    linux.read_only("/", below=False)
