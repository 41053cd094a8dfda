"""The parent's end of one judge process: how it is started, spoken to, heard and ended."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import gradus
from gradus.models.judging.folders import make_folder
from gradus.models.judging.masking import Mask
from gradus.models.judging.messages import Batch, Hello, Message
from gradus.models.judging.process_tree import kill_tree
from gradus.models.rewards import RewardSpec
from gradus.models.rewards.base import Row

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
"""Environment variables that judges inherit: no key, token or secret is among them; see RewardSpec.variables."""

MAX_LINE_BYTES = 4 * 1024 * 1024
SETTLE_S = 1.0
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

    def rest(self, without: set[int]) -> "Chunk":
        """The unanswered rows as a new chunk."""
        left = [index for index in self.indices[self.answered :] if index not in without]
        alone = len(left) == 1
        return Chunk(left, deaths=self.deaths if alone else 0, singly=self.singly and alone)


class JudgeProcess:
    """One judge. `deadline` is when its present work is overdue (monotonic seconds), None while it has none.

    What judged code prints is appended to `log`; without one it is dropped.
    """

    def __init__(
        self,
        spec: RewardSpec,
        *,
        item_timeout_s: float,
        deadline: float,
        log: Path | None = None,
    ) -> None:
        self.ready = False
        self.deadline: float | None = deadline
        self.in_flight: deque[Chunk] = deque()
        self._nonce = secrets.token_hex(16)
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._mask = Mask(spec.variables)
        self.folder = make_folder()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gradus.models.judging.judge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if log else subprocess.DEVNULL,
            cwd=self.folder,
            env=_environment(spec.variables),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if log is not None:
            assert self._process.stderr is not None
            threading.Thread(
                target=_keep_printed, args=(self._process.stderr, log, Mask(spec.variables)), daemon=True
            ).start()
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout
        os.set_blocking(self.stdin.fileno(), False)
        os.set_blocking(self.stdout.fileno(), False)
        self._post(
            {
                "nonce": self._nonce,
                "spec": spec.to_json(),
                "item_timeout_s": item_timeout_s,
                "memory_bytes": MEMORY_BYTES,
            }
        )

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its session and process group."""
        return self._process.pid

    @property
    def has_unsent(self) -> bool:
        """Return whether something waits for the pipe to take more."""
        return bool(self._outbox)

    def send(self, chunk: Chunk, rows: Sequence[Row]) -> None:
        """Queue a chunk; it goes out as fast as the judge reads."""
        self.in_flight.append(chunk)
        self._post({"rows": rows})

    def flush(self) -> None:
        """Write what the pipe takes without waiting; a dead judge is noticed by `receive`."""
        try:
            while self._outbox:
                written = os.write(self.stdin.fileno(), self._outbox[: 1 << 18])
                del self._outbox[:written]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._outbox.clear()

    def receive(self) -> tuple[list[Message], bool]:
        """The whole messages that have arrived, forged and broken ones left out, and whether the judge still speaks."""
        alive = True
        with contextlib.suppress(BlockingIOError):
            while True:
                piece = os.read(self.stdout.fileno(), _READ_BYTES)
                if not piece:
                    alive = False
                    break
                self._inbox += piece
        *lines, rest = bytes(self._inbox).split(b"\n")
        self._inbox = bytearray(rest)
        messages = [m for m in map(self._read, lines) if m is not None]
        return messages, alive and len(self._inbox) <= MAX_LINE_BYTES

    def advance(self) -> int:
        """Index of the row at the head of the line, which is now answered."""
        head = self.in_flight[0]
        index = head.indices[head.answered]
        head.answered += 1
        if head.answered == len(head.indices):
            self.in_flight.popleft()
        return index

    def settle(self) -> None:
        """Let a judge that closed its pipe finish exiting, so that `end` can say how; it is not reaped."""
        give_up = time.monotonic() + SETTLE_S
        while time.monotonic() < give_up:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                return
            time.sleep(0.005)

    def end(self) -> str:
        """Kill the judge, its process group and its descendants; says how it had ended. Safe to call twice."""
        if self._process.returncode is None:
            # Before the wait the zombie still holds its id: no signal can meet another process.
            kill_tree(self.pid)
            self._process.wait()
            for pipe in (self.stdin, self.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        code = self._process.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"

    def _post(self, message: Hello | Batch) -> None:
        self._outbox += json.dumps(message, default=str).encode("ascii") + b"\n"
        self.flush()

    def _read(self, line: bytes) -> Message | None:
        try:
            message = json.loads(line)
            genuine = secrets.compare_digest(str(message.pop("nonce")), self._nonce)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if not genuine:
            return None
        for key in _FREE_TEXTS:
            if isinstance(message.get(key), str):
                message[key] = self._mask.text(message[key])
        for mark in message.get("marks", ()):
            mark[:] = [self._mask.text(each) if isinstance(each, str) else each for each in mark]
        return message


def _keep_printed(printed: IO[bytes], log: Path, mask: Mask) -> None:
    """Copy what a judge prints to its log until nobody can print any more; a full disk loses it, and stops no judge."""
    left = PRINTED_BYTES
    with printed:
        while piece := os.read(printed.fileno(), _READ_BYTES):
            if left > 0:
                _append(log, mask.piece(piece)[:left])
                left -= len(piece)
                if left <= 0:
                    _append(
                        log, f"\n(this judge printed more than {PRINTED_BYTES} bytes; the rest was dropped)\n".encode()
                    )
    if left > 0:
        _append(log, mask.rest())


def _append(log: Path, content: bytes) -> None:
    with contextlib.suppress(OSError), log.open("ab") as file:
        file.write(content)


def _environment(variables: Sequence[str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in (*KEPT_VARIABLES, *variables) if name in os.environ}
    root = str(Path(gradus.__file__).parents[1])
    path = [root, *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    # A fixed hash seed: the order of sets in SymPy must not change from judge to judge.
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
