"""The parent's end of one judge process: what it may see, what it is asked, and what is kept of its output.

The values of the variables that a reward may see are masked in what it answers and prints, as they are and as a URL
has them. Not covered: values of less than four characters, and a reward that disguises one.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import gradus
from gradus.components.user_modules import modules_of
from gradus.models.judging.folders import make_folder
from gradus.models.processes.child import Child
from gradus.models.rewards import RewardSpec
from gradus.models.rewards.base import Row
from gradus.models.sandbox import Group, confined, group_of

_HIDDEN = "***"
_MIN_CHARS = 4


class Mask:
    """The values of some environment variables, as they are now."""

    def __init__(self, variables: Sequence[str]) -> None:
        values = [os.environ.get(name, "") for name in variables]
        forms = {form for value in values if len(value) >= _MIN_CHARS for form in (value, quote(value, safe=""))}
        self._values = sorted(forms, key=len, reverse=True)
        self._bytes = [value.encode(errors="surrogateescape") for value in self._values]
        self.held = b""
        """Bytes of a stream that may be the beginning of a value."""

    def text(self, text: str) -> str:
        """Return the text without the values."""
        for value in self._values:
            text = text.replace(value, _HIDDEN)
        return text

    def piece(self, piece: bytes) -> bytes:
        """Return the next piece of a stream without the values; an end that may be the beginning of one is held."""
        found = self.held + piece
        for value in self._bytes:
            found = found.replace(value, _HIDDEN.encode())
        held = max((_overlap(found, value) for value in self._bytes), default=0)
        self.held = found[len(found) - held :]
        return found[: len(found) - held]


def _overlap(found: bytes, value: bytes) -> int:
    """Return the number of bytes at the end that are the beginning of a value."""
    longest = min(len(found), len(value) - 1)
    return next((size for size in range(longest, 0, -1) if found.endswith(value[:size])), 0)


KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
"""Environment variables that judges inherit: no key, token or secret is among them; see RewardSpec.variables."""

MAX_LINE_BYTES = 4 * 1024 * 1024
MEMORY_BYTES = 8 * 1024**3
APART = 16
"""Stride between rows that are judged one after another after a batch was split."""
PRINTED_BYTES = 256 * 1024
"""Maximum number of bytes kept of one judge's output; the rest is dropped."""
_READ_BYTES = 1 << 16
_FREE_TEXTS = ("fatal", "error", "extracted")
"""Keys of messages whose texts come from judged code."""


@dataclass
class Chunk:
    """Rows sent together. `singly`: each has its own limit, even for a user's function."""

    indices: list[int]
    answered: int = 0
    deaths: int = 0
    singly: bool = False

    def split(self) -> list["Chunk"]:
        """Split into single-row chunks, interleaved so that rows of one problem are not judged in sequence."""
        left = self.indices[self.answered :]
        return [Chunk([index], singly=True) for start in range(APART) for index in left[start::APART]]

    def rest(self) -> "Chunk":
        """The unanswered rows as a new chunk."""
        left = self.indices[self.answered :]
        alone = len(left) == 1
        return Chunk(left, deaths=self.deaths if alone else 0, singly=self.singly and alone)


class JudgeProcess(Child):
    """One judge. `deadline` is when its present work is overdue (monotonic seconds), None while it has none.

    What judged code prints is appended to `log`; without one it is dropped.
    """

    def __init__(self, spec: RewardSpec, item_timeout_s: float, deadline: float, log: Path | None = None) -> None:
        self.ready = False
        self.deadline: float | None = deadline
        self.in_flight: deque[Chunk] = deque()
        self._mask = Mask(spec.variables)
        self.folder = make_folder()
        self._group = group_of(MEMORY_BYTES) if spec.isolated else Group()
        super().__init__(
            self._group.entered_by(_command(spec)),
            env=_environment(spec.variables),
            output=subprocess.PIPE if log else subprocess.DEVNULL,
            errors=subprocess.STDOUT,
            cwd=self.folder,
            max_bytes=MAX_LINE_BYTES,
        )
        if log is not None:
            printed = self.process.stdout
            assert printed is not None
            threading.Thread(target=_keep_printed, args=(printed, log, Mask(spec.variables)), daemon=True).start()
        self.send({"spec": spec.to_json(), "item_timeout_s": item_timeout_s, "memory_bytes": MEMORY_BYTES})

    def ask(self, chunk: Chunk, rows: Sequence[Row]) -> None:
        """Queue a chunk."""
        self.in_flight.append(chunk)
        self.send({"rows": rows})

    def receive(self) -> list[dict[str, Any]]:
        """Return the whole messages that have arrived, values of variables masked."""
        messages = super().receive()
        for message in messages:
            for key in _FREE_TEXTS:
                if isinstance(message.get(key), str):
                    message[key] = self._mask.text(message[key])
            for mark in message.get("marks", ()):
                mark[:] = [self._mask.text(each) if isinstance(each, str) else each for each in mark]
        return messages

    def advance(self) -> int:
        """Index of the row at the head of the line, which is now answered."""
        head = self.in_flight[0]
        index = head.indices[head.answered]
        head.answered += 1
        if head.answered == len(head.indices):
            self.in_flight.popleft()
        return index

    def end(self) -> int:
        """End the judge and all it started, and remove its folder and its group; return its exit code."""
        code = super().end()
        self._group.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code


def _keep_printed(printed: IO[bytes], log: Path, mask: Mask) -> None:
    """Copy what a judge prints to its log until nobody can print any more; a full disk loses it, and stops no judge."""
    left = PRINTED_BYTES
    with printed:
        while piece := os.read(printed.fileno(), _READ_BYTES):
            if left > 0:
                _append(log, mask.piece(piece)[:left])
                left -= len(piece)
                if left <= 0:
                    note = f"\n(this judge printed more than {PRINTED_BYTES} bytes; the rest was dropped)\n"
                    _append(log, note.encode())
    if left > 0:
        _append(log, mask.held)


def _append(log: Path, content: bytes) -> None:
    with contextlib.suppress(OSError), log.open("ab") as file:
        file.write(content)


def _command(spec: RewardSpec) -> list[str]:
    command = [sys.executable, "-P", "-m", "gradus.models.judging.judge"]
    if not spec.isolated:
        return command
    files = [spec.path, *(module.path for module in modules_of(Path(spec.path))[0].values())] if spec.path else []
    return confined(command, files)


def _environment(variables: Sequence[str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in (*KEPT_VARIABLES, *variables) if name in os.environ}
    root = str(Path(gradus.__file__).parents[1])
    path = [root, *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    # A fixed hash seed: the order of sets in SymPy must not change from judge to judge.
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
