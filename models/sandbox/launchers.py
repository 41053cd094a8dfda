"""Two backends of the sandbox: our own namespaces, or bubblewrap if the machine allows namespaces to it alone.

Both open a cell (gradus.models.sandbox.inside.cell) and return the socket to speak to it.
"""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.models.sandbox import groups
from gradus.models.sandbox.inside import __file__ as _inside
from gradus.models.sandbox.inside.cell import SEARCHED
from gradus.models.sandbox.inside.linux import INNER_ID

START_LIMIT_S = 20.0
SYSTEM_FOLDERS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
)
"""Parts of the machine that a program sees, read-only, beside the installation of its Python."""
_ENVIRONMENT = {"PATH": SEARCHED, "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}
"""Sets print alike in every process, and threads reserve little address space."""
_MODULE = "gradus.models.sandbox.inside"
BWRAP = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL")
"""Options of every bubblewrap."""
_ROOT = str(Path(_inside).parents[len(_MODULE.split("."))])
"""Folder of the package gradus."""
_CELL = (
    "import json, socket, sys; sys.path.insert(0, '/.code'); "
    f"from {_MODULE}.cell import serve; del sys.path[0]; "
    "serve(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2]))"
)
NEEDED = "install bubblewrap, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)"
"""The cure for a machine without a sandbox."""


class SandboxUnavailableError(RuntimeError):
    """A machine without a sandbox: the message says what was tried."""


class Namespaces:
    """Cells forked from a clean interpreter that has entered namespaces of its own."""

    name = "user namespaces"

    def __init__(self, python: str, folders: Sequence[str], limits: Mapping[str, int]) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_LIMIT_S)
        self._group = groups.made(*groups.bounds(limits))
        config = json.dumps({"folders": folders, "limits": limits})
        with theirs:
            command = [*entering(python, "fork_cells"), str(theirs.fileno()), config]
            self._process = _started(self._group.entered_by(command), theirs)
        line = _line(self._control)
        self.grouped = self._group.holds(self._process.pid)
        """True if a control group of the kernel bounds all cells together."""
        said = json.loads(line or b'{"failed": "its first process ended"}')
        if "failed" in said:
            self.close()
            raise SandboxUnavailableError(f"{self.name}: {said['failed']}")

    def open(self) -> socket.socket:
        """Return the socket of a new cell; SandboxUnavailableError if there can be none."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SandboxUnavailableError(f"{self.name}: its first process has ended") from error
        return ours

    def close(self) -> None:
        """End every cell."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._group.remove()


class Bubblewrap:
    """Cells started by bwrap, each with an interpreter of its own."""

    name = "bubblewrap"

    def __init__(self, python: str, folders: Sequence[str], limits: Mapping[str, int]) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxUnavailableError(f"{self.name}: bwrap is not installed")
        self._python, self._limits = python, limits
        self._group = groups.made(*groups.bounds(limits))
        self._started: list[subprocess.Popen[bytes]] = []
        code = f"/.code/{_MODULE.replace('.', '/')}"
        self._command = [
            *(program, *BWRAP, "--as-pid-1"),
            *("--uid", str(INNER_ID), "--gid", str(INNER_ID)),
            *(word for path in folders for word in shown(path)),
            *("--ro-bind", str(Path(_inside).parent), code),
            *("--proc", "/proc", "--dev", "/dev"),
            *(word for path in ("/tmp", "/dev/shm") for word in ("--size", str(limits["disk"]), "--tmpfs", path)),  # noqa: S108
            *("--remount-ro", "/", "--remount-ro", "/dev"),
        ]
        with self.open(subprocess.PIPE) as cell:
            cell.settimeout(START_LIMIT_S)
            with contextlib.suppress(OSError):
                cell.sendall(b'{"mode": "main", "source": "", "limit_s": 5}\n')
            works = bool(_line(cell))
            self.grouped = self._group.holds(self._started[0].pid)
        said = self._started[0].communicate()[1].decode(errors="replace").strip().rpartition("\n")[2]
        if not works:
            self.close()
            raise SandboxUnavailableError(f"{self.name}: {said or 'it does not start'}")

    def open(self, stderr: int = subprocess.DEVNULL) -> socket.socket:
        """Return the socket of a new cell."""
        ours, theirs = socket.socketpair()
        inside = [*_clean(self._python, _CELL), str(theirs.fileno()), json.dumps(self._limits)]
        with theirs:
            self._started = [each for each in self._started if each.poll() is None]
            command = self._group.entered_by([*self._command, "--", *inside])
            self._started.append(_started(command, theirs, stderr))
        return ours

    def close(self) -> None:
        """End every cell."""
        for process in self._started:
            process.kill()
            process.wait()
        self._group.remove()


Launcher = Namespaces | Bubblewrap
BACKENDS: tuple[type[Launcher], ...] = (Namespaces, Bubblewrap)
"""In the order in which they are tried."""


def launcher(python: str, limits: Mapping[str, int]) -> Launcher:
    """Return the first backend that works here; SandboxUnavailableError says what was tried."""
    interpreter, folders = interpreter_and_folders(python)
    failures: list[str] = []
    for backend in BACKENDS:
        try:
            return backend(interpreter, folders, limits)
        except SandboxUnavailableError as error:
            failures.append(str(error))
    raise SandboxUnavailableError("; ".join(failures))


def interpreter_and_folders(python: str) -> tuple[str, list[str]]:
    """Return the interpreter of Python programs, and every folder that a program sees.

    Without a name it is Gradus' own, without the packages that are installed beside it.
    """
    if not python:
        named = f"python{sys.version_info.major}.{sys.version_info.minor}", "python3"
        there = (path for name in named if (path := Path(sys.base_prefix, "bin", name)).exists())
        return str(next(there, sys.executable)), [*SYSTEM_FOLDERS, sys.base_prefix]
    asked = [python, "-I", "-c", "import sys; print(sys.prefix, sys.base_prefix, *sys.version_info[:2], sep='\\n')"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=START_LIMIT_S, check=True)
        prefix, base_prefix, *version = done.stdout.splitlines()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxUnavailableError(f"{python} is no Python interpreter: {error}") from error
    if tuple(map(int, version)) < (3, 11):
        raise SandboxUnavailableError(f"{python} is Python {'.'.join(version)}: 3.11 or newer is needed")
    hidden = next((each for each in (prefix, base_prefix) if Path(each).is_relative_to("/tmp")), "")  # noqa: S108
    if hidden:
        raise SandboxUnavailableError(f"{hidden} is below /tmp, where programs have files of their own")
    return python, [*SYSTEM_FOLDERS, *dict.fromkeys((base_prefix, prefix))]


def _line(connection: socket.socket) -> bytes:
    """Return the first line of a process that starts; empty if it ends, or says nothing in time."""
    with connection.makefile("rb") as replies, contextlib.suppress(OSError):
        return replies.readline()
    return b""


def entering(python: str, first: str) -> list[str]:
    """Return the command that runs a function of gradus.models.sandbox.inside.entry, in a clean interpreter."""
    code = (
        f"import sys; sys.path.insert(0, sys.argv.pop(1)); from {_MODULE}.entry import {first}; "
        f"del sys.path[0]; {first}()"
    )
    return [*_clean(python, code), _ROOT]


def shown(path: str) -> list[str]:
    """Return bubblewrap's options for a file or a folder that is visible, read-only."""
    if Path(path).is_symlink():
        return ["--symlink", str(Path(path).readlink()), path]
    return ["--ro-bind-try", path, path]


def _clean(python: str, code: str) -> list[str]:
    return [python, "-s", "-P", "-B", "-X", "utf8", "-c", code]


def _started(command: list[str], theirs: socket.socket, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=[theirs.fileno()],
        env=_ENVIRONMENT,
        cwd="/",
    )
