"""A cell: process 1 of namespaces of its own, which runs one program on one input after another and ends with it.

Requests and answers are lines of JSON over a socket. Whatever a run leaves behind is killed before its answer.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gradus.models.sandbox.inside import linux
from gradus.models.sandbox.inside.filter import refuse_calls
from gradus.models.sandbox.inside.python import CHANNEL, WORK, run_mode

SCRATCH = "/scratch"
"""Folder of a command of ours, whose own files may lie below /tmp."""
_LOOK_S = 0.03
"""Interval at which memory, processes and files are counted."""
_MAX_FILES = 10_000
_MAX_OPEN_FILES = 128
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SEARCHED = "/usr/local/bin:/usr/bin:/bin"
"""Folders of a program's commands."""
_ENVIRONMENT = {"PATH": SEARCHED, "HOME": WORK, "TMPDIR": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108

Message = dict[str, Any]


def mount_own(folder: str, disk_bytes: int) -> None:
    """Mount a file system in memory, and the process table of these namespaces."""
    linux.mount("tmpfs", folder, "tmpfs", linux.NOSUID | linux.NODEV, f"size={disk_bytes},mode=1777")
    linux.mount("proc", "/proc", "proc", linux.NOSUID | linux.NODEV | linux.NOEXEC, "subset=pid")
    linux.detach("/.proc")


def serve(connection: socket.socket, limits: Mapping[str, int]) -> NoReturn:
    """Answer requests until the other side closes; process 1 that ends takes all others with it."""
    try:
        linux.hide_memory()
        Path(WORK).mkdir(exist_ok=True)
        Path(WORK).chmod(0o777)
        _Cell(connection, limits).serve()
    finally:
        os._exit(0)


class _Cell:
    def __init__(self, connection: socket.socket, limits: Mapping[str, int]) -> None:
        self._connection = connection
        self._limits = limits
        self._held = bytearray()
        self._source = ""

    def serve(self) -> None:
        """Answer one request after another."""
        while True:
            request = self._next()
            if "file" in request:
                name, self._source = request["file"]
                path = Path(WORK) / Path(name).name
                path.write_text(self._source, encoding="utf-8", errors="surrogateescape")
                path.chmod(0o644)
            elif "run" in request or "mode" in request:
                self._say(self._run(request))

    def _next(self) -> Message:
        """Return the next request; this process ends if none can come any more."""
        while (end := self._held.find(b"\n")) < 0:
            piece = self._connection.recv(1 << 16)
            if not piece:
                os._exit(0)
            self._held += piece
        line = bytes(self._held[:end])
        del self._held[: end + 1]
        return json.loads(line)

    def _say(self, message: Message) -> None:
        self._connection.sendall(json.dumps(message).encode("ascii") + b"\n")

    def _run(self, request: Message) -> Message:
        """Start a process, relay its values, and return how it ended when nothing of it is left."""
        streams, channel = (_Stream(self._limits["output"]), _Stream(self._limits["stderr"])), _Channel()
        started = time.monotonic()
        child = self._start(request, streams, channel)
        try:
            status, code = self._watched(child, request, streams, channel)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)
        seconds = time.monotonic() - started
        for stream in streams:
            stream.drain()
        out, err = streams
        channel.close()
        return {"status": status, "code": code, "stdout": out.text(), "stderr": err.text(), "seconds": seconds}

    def _start(self, request: Message, streams: "_Streams", channel: "_Channel") -> int:
        # In memory of its own: the file system may be full of what an earlier run wrote.
        with os.fdopen(os.memfd_create("stdin"), "w+b") as stdin:
            stdin.write(request.get("stdin", "").encode("utf-8", "surrogateescape"))
            stdin.seek(0)
            child = os.fork()
            if child == 0:
                ends = [stream.write_end for stream in streams]
                self._become(request, [stdin.fileno(), *ends, channel.inner.fileno()])
        for stream in streams:
            stream.begin()
        channel.begin()
        return child

    def _become(self, request: Message, descriptors: list[int]) -> NoReturn:
        """Turn a forked process into the program."""
        try:
            linux.die_with_parent()
            os.setsid()
            # First out of the way of 0 to 3, then into their places.
            away = [os.dup2(each, 100 + at) for at, each in enumerate(descriptors)]
            for at, each in enumerate(away):
                os.dup2(each, at, inheritable=True)
            os.closerange(CHANNEL + 1, 1024)
            os.chdir(WORK)
            os.environ.clear()
            os.environ.update(_ENVIRONMENT)
            linux.drop_rights(self._rlimits(request))
            linux.hide_memory(hidden=False)  # for /dev/stdin; it holds no more than the program's own input
            linux.end_sooner()
            refuse_calls()
            if "run" in request:
                os.execvpe(request["run"][0], request["run"], {**_ENVIRONMENT})  # noqa: S606 - no shell is wanted
            run_mode(request["mode"], request.get("source", self._source))
        except BaseException as error:  # noqa: BLE001 - said by its last words
            os.write(2, f"the program could not be started: {error}\n".encode())
        finally:
            os._exit(127)

    def _rlimits(self, request: Message) -> dict[str, int]:
        memory = self._memory(request)
        space = {} if request.get("reserves") else {"AS": memory + self._limits["room"]}
        return {
            **space,
            "DATA": memory,
            "CPU": math.ceil(float(request["limit_s"])) + 1,
            "FSIZE": self._limits["disk"],
            "NOFILE": _MAX_OPEN_FILES,
            "NPROC": self._limits["processes"] + self._limits["own_processes"],
            "CORE": 0,
        }

    def _memory(self, request: Message) -> int:
        return int(request.get("memory", self._limits["memory"]))

    def _watched(self, child: int, request: Message, streams: "_Streams", channel: "_Channel") -> tuple[str, int]:
        """Wait for a process to end or to pass a limit; return ("exit", status) or (the limit, 0)."""
        until = time.monotonic() + float(request["limit_s"])
        ended = os.pidfd_open(child)
        try:
            while True:
                left = until - time.monotonic()
                if left <= 0:
                    return "time", 0
                sources = [ended, self._connection, *(s.read_end for s in streams if s.open)]
                waits_s = 0.0 if b"\n" in self._held else min(left, _LOOK_S)
                readable, _, _ = select.select([*sources, *channel.sources()], [], [], waits_s)
                for stream in streams:
                    if stream.read_end in readable:
                        stream.take()
                if streams[0].full:
                    return "output", 0
                for line in channel.lines(readable):
                    self._say({"line": line})
                if ended in readable:
                    _, status = os.waitpid(child, 0)
                    return "exit", os.waitstatus_to_exitcode(status)
                if (self._connection in readable or waits_s == 0.0) and not self._hear(channel):
                    return "stopped", 0
                passed = self._passed(self._memory(request))
                if passed:
                    return passed, 0
        finally:
            os.close(ended)

    def _hear(self, channel: "_Channel") -> bool:
        """Relay a line of the other side; False if it asks for the end."""
        request = self._next()
        if "line" in request:
            channel.send(request["line"])
        return "line" in request

    def _passed(self, memory_bytes: int) -> str:
        """Return the limit that the processes of this cell are beyond; empty if none."""
        num_processes = num_pages = 0
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and folder.name != "1":
                with contextlib.suppress(OSError):
                    num_pages += int((folder / "statm").read_bytes().split()[1])
                    num_processes += 1
        if num_pages * _PAGE_BYTES > memory_bytes:
            return "memory"
        if num_processes > self._limits["processes"]:
            return "processes"
        tree = os.statvfs("/tmp")  # noqa: S108
        return "files" if tree.f_files - tree.f_ffree > _MAX_FILES else ""


class _Stream:
    """Output of a process to one descriptor, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.read_end, self.write_end = os.pipe()
        os.fchmod(self.write_end, 0o622)  # a program may open /dev/stdout
        self.open = True
        self.full = False
        self._limit_bytes = limit_bytes
        self._held = bytearray()

    def begin(self) -> None:
        """Close the end that the process writes to."""
        os.close(self.write_end)
        os.set_blocking(self.read_end, False)

    def take(self) -> None:
        """Read what is there; what is beyond the limit is dropped."""
        try:
            piece = os.read(self.read_end, 1 << 16)
        except BlockingIOError:
            return
        self.open = bool(piece)
        self.full = len(self._held) + len(piece) > self._limit_bytes
        self._held += piece[: self._limit_bytes - len(self._held)]

    def drain(self) -> None:
        """Read what is left when nobody writes any more."""
        while self.open and not self.full:
            self.take()
        os.close(self.read_end)

    def text(self) -> str:
        """Return all of it."""
        return self._held.decode("utf-8", "replace")


_Streams = tuple[_Stream, _Stream]
"""Standard output and standard error."""


class _Channel:
    """Lines between the program and the other side, which this process does not read."""

    _MAX_BYTES = 4 * 1024 * 1024

    def __init__(self) -> None:
        self._outer, self.inner = socket.socketpair()
        self._held = bytearray()
        self._open = True

    def begin(self) -> None:
        """Close the program's end, and never wait for it."""
        self.inner.close()
        self._outer.settimeout(1.0)

    def sources(self) -> list[socket.socket]:
        """Return what to wait for."""
        return [self._outer] if self._open else []

    def lines(self, readable: list[Any]) -> list[str]:
        """Return the whole lines that have come."""
        if self._outer not in readable:
            return []
        try:
            piece = self._outer.recv(1 << 16)
        except OSError:
            piece = b""
        self._held += piece
        self._open = bool(piece) and len(self._held) < self._MAX_BYTES
        *whole, rest = bytes(self._held).split(b"\n")
        self._held = bytearray(rest)
        return [line.decode("utf-8", "replace") for line in whole]

    def send(self, line: str) -> None:
        """Pass a line to the program, if it takes it."""
        try:
            self._outer.sendall(line.encode() + b"\n")
        except OSError:
            self._open = False

    def close(self) -> None:
        """Close this end."""
        self._outer.close()
