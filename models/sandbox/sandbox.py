r"""The sandbox as its users see it: a program, run on inputs, called, or tested by code that it cannot reach.

    with Sandbox() as sandbox, sandbox.open(Program("print(int(input()) + 1)")) as program:
        program.run("41").stdout                     # "42\n"

**Covered.** A program has no network, sees the system's programs and one Python installation read-only, writes to a
file system in memory of its own, is nobody outside, sees no process but its own, and has limits on time, memory,
processes, output and files. What it knows is its input: expected outputs and verdicts stay here. Whatever it leaves
running is killed with its namespace. Where a control group can be made, it bounds the memory and the processes of all
cells of a sandbox together, the kernel's own memory for them too (gradus.models.sandbox.groups).
**Not covered.** A hole in the kernel; timing; the machine's programs under /usr, which it may read. The kernel's memory
for pipes, sockets and page tables is in no limit of a single program: the group ends one that takes more than a program
and its tests may have together, at times with the whole sandbox, which starts again; without a group the number of open
files alone bounds it, and nothing bounds the page tables of a program that `reserves` address space.
"""

import contextlib
import functools
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gradus.models.sandbox.inside.values import MAX_VARIABLES_CHARS, encoded, last_variables
from gradus.models.sandbox.launchers import SandboxUnavailableError, launcher

GRACE_S = 2.0
"""A cell that is silent for this much longer than its limit has ended, or is ended."""
_LIMITS = ("time", "memory", "processes", "files", "output")
_MIB = 1024 * 1024
_MAX_LINE_BYTES = 64 * _MIB
_STDERR_BYTES = 16 * 1024
_OWN_PROCESSES = 8
"""Processes of the sandbox itself, which count against the program's limit if the sandbox was not started by root."""
_ROOM_BYTES = 1024 * _MIB
"""Address space beside the memory: for libraries and stacks."""
_BUILD_BYTES = 1024 * _MIB
"""Memory of a compiler, at least."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program, all its processes together."""

    memory_bytes: int = 512 * _MIB
    disk_bytes: int = 64 * _MIB
    output_bytes: int = _MIB
    """Longest standard output of one run."""
    num_processes: int = 32


@dataclass(frozen=True)
class Program:
    """A program and the way to run it; without commands it is Python."""

    source: str
    file: str = "main.py"
    build: Sequence[str] = ()
    command: Sequence[str] = ()
    reserves: bool = False
    """Its runtime reserves more address space than it uses."""
    variables: bool = False
    """A Python program reports the last variables of its top level."""


@dataclass(frozen=True)
class Ran:
    """One run of a program.

    `ended` is "exit" or the limit that ended it: time, memory, processes, files, output; "early" if a program ended
    before it had answered its tests.
    """

    ended: str
    status: int = 0
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The last three short ones of its top level, by its own word, if that is wanted and `ok`."""

    @property
    def ok(self) -> bool:
        """Return whether it ended by itself, with status 0."""
        return self.ended == "exit" and self.status == 0

    @property
    def reason(self) -> str:
        """Return how it failed: the last line of its standard error, else the way that it ended."""
        if self.ended in _LIMITS:
            return f"ended by its limit of {self.ended}"
        last = self.stderr.strip().rpartition("\n")[2]
        return last or ("it ended before it had answered" if self.ended == "early" else f"exit status {self.status}")


@dataclass(frozen=True)
class Answered:
    """A call of one of a program's functions: its value as JSON, or the reason that there is none."""

    value: Any = None
    error: str = ""


class CellLostError(RuntimeError):
    """A cell that does not answer: it was killed from outside, or the machine has no memory or no time for it."""


class Sandbox:
    """Cells of one set of limits, one warm; SandboxUnavailableError if this machine has no sandbox.

    Its group has room for two cells in use at one time, a program and its tests: more of them need a sandbox each.
    """

    def __init__(self, limits: Limits | None = None, *, python: str = "") -> None:
        limits = limits or Limits()
        self._limits = {
            "memory": limits.memory_bytes,
            "disk": limits.disk_bytes,
            "output": limits.output_bytes,
            "stderr": _STDERR_BYTES,
            "processes": limits.num_processes,
            "own_processes": _OWN_PROCESSES,
            "room": _ROOM_BYTES,
            "build": max(_BUILD_BYTES, limits.memory_bytes),
        }
        self._python = python
        self._warm: list[socket.socket] = []
        self._launcher = launcher(python, self._limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self, program: Program) -> "Cell":
        """Return a cell with a program in it; another is made ready meanwhile."""
        try:
            connection = self._next()
        except SandboxUnavailableError:
            # The process that cells are forked from was killed: once more.
            self.close()
            self._launcher = launcher(self._python, self._limits)
            connection = self._next()
        return Cell(connection, program, build_bytes=self._limits["build"])

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self._launcher.name

    @property
    def grouped(self) -> bool:
        """True if a control group of the kernel bounds its memory and processes, beside the limits of each program."""
        return self._launcher.grouped

    def close(self) -> None:
        """End every cell."""
        while self._warm:
            self._warm.pop().close()
        self._launcher.close()

    def _next(self) -> socket.socket:
        while len(self._warm) < 2:
            self._warm.append(self._launcher.open())
        return self._warm.pop(0)


class Cell:
    """One program in a cell of its own, for a with statement; CellLostError if it does not answer."""

    def __init__(self, connection: socket.socket, program: Program, *, build_bytes: int) -> None:
        self._connection = connection
        self._program = program
        self._build_bytes = build_bytes
        self._held = bytearray()

    def __enter__(self) -> Self:
        self.request({"file": [self._program.file, self._program.source]})
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()

    def build(self, limit_s: float) -> Ran:
        """Compile the program."""
        request = {"run": list(self._program.build), "limit_s": limit_s, "memory": self._build_bytes}
        return self._ended(request)

    def run(self, stdin: str = "", *, limit_s: float = 2.0) -> Ran:
        """Run the program on an input."""
        mode = "variables" if self._program.variables else "main"
        how = {"run": list(self._program.command)} if self._program.command else {"mode": mode}
        return self._ended({**how, "stdin": stdin, "limit_s": limit_s, "reserves": self._program.reserves})

    def call(self, function: str, args: list[Any], *, limit_s: float = 2.0) -> Answered:
        """Call a function of a Python program in a fresh process (values: gradus.models.sandbox.inside.values)."""
        self.request({"mode": "calls", "limit_s": limit_s})
        self.request({"line": json.dumps({"call": function, "args": encoded(args)})})
        message = self.answer(time.monotonic() + limit_s + GRACE_S)
        if "line" not in message:
            return Answered(error=_ran(message).reason)
        self.stop()
        said = _mapping(message["line"])
        if "value" in said:
            return Answered(value=said["value"])
        return Answered(error=f"{said.get('raised', 'it says nothing')}: {said.get('text', '')}")

    def stop(self) -> Ran:
        """End what runs."""
        return self._ended({"stop": True, "limit_s": 0.0})

    def _ended(self, request: Mapping[str, Any]) -> Ran:
        """Send a request and return how the run ended; of what it sends unasked only its variables are kept."""
        self.request(request)
        until, said = time.monotonic() + request["limit_s"] + GRACE_S, ""
        while "line" in (message := self.answer(until)):
            said = message["line"][: MAX_VARIABLES_CHARS + 1]
        ran = _ran(message)
        wanted = ran.ok and request.get("mode") == "variables"
        return replace(ran, variables=last_variables(_mapping(said))) if wanted else ran

    def request(self, request: Mapping[str, Any]) -> None:
        """Send a request, or a line for the process that runs."""
        # One that has died is noticed when it does not answer.
        with contextlib.suppress(OSError):
            self._connection.settimeout(GRACE_S)
            self._connection.sendall(json.dumps(request).encode("ascii") + b"\n")

    def answer(self, until: float) -> dict[str, Any]:
        """Return the next message; CellLostError if there comes none."""
        while (end := self._held.find(b"\n")) < 0:
            left, piece = until - time.monotonic(), b""
            if left > 0 and len(self._held) <= _MAX_LINE_BYTES:
                self._connection.settimeout(left)
                with contextlib.suppress(OSError):
                    piece = self._connection.recv(1 << 16)
            if not piece:
                raise CellLostError("the cell of the program does not answer")
            self._held += piece
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return _mapping(line)


def run_tests(program: Cell, tests: Cell, *, limit_s: float) -> Ran:
    """Run the tests in one cell against the program in another; calls of its functions cross over as values."""
    until = time.monotonic() + limit_s
    program.request({"mode": "calls", "limit_s": limit_s})
    tests.request({"mode": "tests", "limit_s": limit_s})
    while "line" in (asked := tests.answer(until + GRACE_S)):
        program.request(asked)
        answer = program.answer(until + GRACE_S)
        if "line" not in answer:
            ran = _ran(answer)
            return replace(ran, ended="early") if ran.ended == "exit" else ran
        tests.request(answer)
    program.stop()
    return _ran(asked)


def _mapping(line: bytes | str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _ran(message: Mapping[str, Any]) -> Ran:
    return Ran(message["status"], message["code"], message["stdout"], message["stderr"], message["seconds"])


@functools.cache
def available_backend() -> str:
    """Return the name of the backend that works on this machine; SandboxUnavailableError if none does."""
    with Sandbox() as sandbox:
        return sandbox.backend
