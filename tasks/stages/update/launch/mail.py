"""Messages from ranks to the stage that launched them: JSON lines in one file a rank, in a folder that all hosts share.

    Mail(folder).writer("rank-1").send({"kind": "here", "rank": 1, "host": "node-2", "pid": 4711})
    Mail(folder).new()                       # messages that were not read before

Files and not pipes, because torchrun closes what it inherits, and the first rank may run on another host.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict


class Note(TypedDict):
    """One message; its other fields depend on its kind."""

    kind: Literal["here", "beat", "done", "error", "memory", "ended"]
    time_s: NotRequired[float]
    """Seconds since the epoch."""
    rank: NotRequired[int]
    host: NotRequired[str]
    pid: NotRequired[int]
    frac: NotRequired[float]
    text: NotRequired[str]
    result: NotRequired[dict[str, Any]]
    """Of kind done: the fields of a StageResult."""
    type: NotRequired[str]
    """Of kind error: the error's class, its sentence and what to do."""
    known: NotRequired[bool]
    message: NotRequired[str]
    hint: NotRequired[str]
    num_tokens: NotRequired[int]
    """Of kind memory: how many tokens to begin anew with."""
    signal: NotRequired[int]
    """Of kind ended: the signal that killed a rank, or 0, and its exit code."""
    exit_code: NotRequired[int]


@dataclass(frozen=True)
class Writer:
    """Appends to the file of one process."""

    path: Path

    def send(self, note: Note) -> None:
        """Send one message; a reader sees it whole or not at all."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time_s": time.time(), **note}, default=str) + "\n")


@dataclass
class Mail:
    """The messages in a folder."""

    folder: Path
    _read_bytes: dict[Path, int] = field(default_factory=dict[Path, int])

    def writer(self, name: str) -> Writer:
        """Return the writer of a process."""
        return Writer(self.folder / f"{name}.jsonl")

    def new(self) -> Iterator[Note]:
        """Yield the messages that came since the last call, each once."""
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read_bytes[path] = self._read_bytes.get(path, 0) + len(line)
                    yield json.loads(line)
