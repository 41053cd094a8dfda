"""Journal of a run, line by line, on disk before anybody else hears of it.

`<run folder>/events.jsonl` holds what happened (runs and stage attempts began, ended, were reused), one object a line.
A line is one append; its end is on the disk before a stage counts as ended. Left out: metrics that do not depend on a
clock, which the report of the artifact has. gradus.tasks.tracking.reporter sends the journal to MLflow.

A line ends with `"check": "0123456789abcdef"}`, a digest of the line and of the check of the line above it. The next
reader finds a flipped bit, and a line that was removed, added or moved: damage, which stops writer and reader. Lines of
earlier versions have no check and are read as they are; below a line that has one they are damage. A line torn by a
power cut is dropped at the next start and ignored by readers. Not found: lines missing at the end, as after a kill.
"""

import errno
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeGuard, Unpack, cast, get_args

from gradus.data.errors import CorruptArtifactError, OnDamage, refuse
from gradus.data.records import JsonObject
from gradus.data.runlock import holder
from gradus.tasks.config.redaction import hide
from gradus.tasks.runs.records import Account, Done, Event, Label, Report, Status
from gradus.tasks.runs.run_settings import RUN

_CHECK = "check"
_BEGIN, _CLOSE = b', "check": "', b'"}\n'
_HEX = frozenset(b"0123456789abcdef")
_CHECK_BYTES = 16
_END_BYTES = len(_BEGIN) + _CHECK_BYTES + len(_CLOSE)

EVENTS = "events.jsonl"
STATUSES = frozenset(get_args(Status))

_STAGE = ("stage", "round", "purpose", "output", "time")
_NEEDED = {
    "stage_started": ("attempt", *_STAGE),
    "stage_reused": _STAGE,
    "stage_finished": ("attempt", "status", "seconds"),
    "run_finished": ("status",),
}
_TEXTS = frozenset({"stage", "purpose", "output", "attempt", "status", "error"})
_NUMBERS = frozenset({"round", "time", "seconds"})


def read_lines(path: Path, offset: int = 0, on_damage: OnDamage = refuse) -> Iterator[tuple[JsonObject, int]]:
    """Yield whole lines from a byte offset on, each with the offset behind it; a torn last line is left alone.

    A line that cannot be read, or is not the one that was written there, is damage and left out.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        above = _check_at(file, offset)
        while True:
            line = file.readline()
            if not line.endswith(b"\n"):
                if _lost_its_end(line, above):
                    on_damage(damaged(path, offset))
                return
            check = _check_of(line)
            row = _parsed(line, check, above)
            if row is None:
                on_damage(damaged(path, offset))
            above = None if row is None else check
            offset += len(line)
            if row is not None:
                yield row, offset


def damaged(path: Path, offset: int) -> CorruptArtifactError:
    """Return the error of a line that is not the one that was written, by the byte that it begins at."""
    number = path.read_bytes()[:offset].count(b"\n") + 1
    return CorruptArtifactError(f"{path} is damaged in line {number}, at byte {offset}", hint=cure(path.parent))


def cure(folder: Path) -> str:
    """Return what to do about a run whose journal is damaged."""
    return (
        f"move events.jsonl and tracking.json out of {folder} and run the same command again: "
        "what is finished is reused"
    )


def append_line(path: Path, row: bytes, *, durable: bool) -> None:
    """Append a JSON object in one write, or not at all."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(descriptor, "r+b", buffering=0) as file:  # noqa: PTH123 - a descriptor
        begin = file.seek(0, os.SEEK_END)
        content = row[:-1] + _BEGIN + _digest(_check_at(file, begin), row[:-1]) + _CLOSE
        if os.write(descriptor, content) != len(content):
            os.ftruncate(descriptor, begin)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(descriptor)


def mend(path: Path) -> None:
    """Cut off what a killed writer left behind the last whole line; raise CorruptArtifactError if a line is damaged."""
    whole = max((end for _, end in read_lines(path)), default=0)
    if whole < path.stat().st_size:
        os.truncate(path, whole)


def _check_at(file: BinaryIO, offset: int) -> bytes:
    """The check of the line that ends at an offset; empty if it has none or there is no line."""
    file.seek(max(0, offset - _END_BYTES))
    return _check_of(file.read(min(offset, _END_BYTES)))


def _check_of(line: bytes) -> bytes:
    check = line[-_END_BYTES + len(_BEGIN) : -len(_CLOSE)]
    return check if line.endswith(_CLOSE) and line[-_END_BYTES:].startswith(_BEGIN) and _HEX.issuperset(check) else b""


def _digest(above: bytes, body: bytes) -> bytes:
    return hashlib.sha256(above + body).hexdigest()[:_CHECK_BYTES].encode()


def _parsed(line: bytes, check: bytes, above: bytes | None) -> JsonObject | None:
    """A line and its check below one with another, None if that is not known; None if the line is damaged."""
    if above is not None and (check != _digest(above, line[:-_END_BYTES]) if check else above):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    if check:
        row.pop(_CHECK, None)
    return row


def _lost_its_end(line: bytes, above: bytes | None) -> bool:
    """Return whether another byte ends a last line that is there with its check, which a kill leaves to no line."""
    whole = line[:-1] + b"\n"
    check = _check_of(whole)
    return bool(check) and _parsed(whole, check, above) is not None


class Journal:
    """The writer of a run's journal; the run's lock sees to it that there is one.

    >>> journal = Journal(folder)
    >>> attempt = journal.stage_started(stage="score", round=3, purpose="train", output=ref, config={}, inputs={})
    >>> journal.stage_finished(attempt, status="finished", seconds=1.5, report={"metrics": {"reward/mean": 0.5}})
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.run = folder.name
        self._events = folder / EVENTS
        self._lock = threading.Lock()
        self._events.open("ab").close()  # before the settings of a run: a folder that has them and no journal lost it
        mend(self._events)

    def run_started(self, facts: Mapping[str, object]) -> None:
        """Note that the command began, with a name for this invocation that is unique within the run."""
        owner = {"pid": os.getpid(), "host": socket.gethostname()}
        self._event("run_started", {**facts, "invocation": secrets.token_hex(8), "owner": owner}, durable=True)

    def stage_started(self, *, config: JsonObject, inputs: Mapping[str, Sequence[str]], **label: Unpack[Label]) -> str:
        """Note that an attempt of a stage began; return its unique name."""
        attempt = f"{label['stage']}-{label['round']}-{secrets.token_hex(5)}"
        self._event("stage_started", {"attempt": attempt, **label, "config": config, "inputs": inputs})
        return attempt

    def stage_finished(
        self,
        attempt: str,
        *,
        status: Status,
        seconds: float,
        report: Report | None = None,
        folder: str = "",
        error: str = "",
    ) -> None:
        """An attempt ended, with one of STATUSES. `folder` holds its manifest and report.

        Raise ValueError, and write nothing, if a number is not finite: failure may not look like success.
        """
        if status not in STATUSES:
            raise ValueError(f"an attempt cannot end as {status!r}; it ends as one of {sorted(STATUSES)}")
        known: Report = report or {}
        body = {
            "attempt": attempt,
            "status": status,
            "seconds": seconds,
            "error": hide(error),
            "folder": folder,
            "summary": known.get("summary", {}),
            "clock": known.get("clock", {}),
            "step_clock": known.get("step_clock", []),
        }
        self._event("stage_finished", body, durable=True)

    def stage_reused(self, *, inputs: Mapping[str, Sequence[str]] | None = None, **label: Unpack[Label]) -> None:
        """A stage's artifact was there and whole, so nothing was computed.

        Its manifest may name other inputs, of the same content as those that the stage was given now.
        """
        self._event("stage_reused", {**label, "inputs": inputs or {}})

    def model_alias(self, model: str, alias: str, ref: str, *, note: str = "") -> None:
        """A checkpoint bears a name from now on: `champion` the best by evaluation, `newest` the last one made.

        MLflow keeps the name `latest` to itself and refuses it. `note` says how the checkpoint came to the name.
        """
        self._event("model_alias", {"model": model, "alias": alias, "ref": ref, "note": note}, durable=True)

    def pruned(self, outputs: Sequence[str], num_bytes: int) -> None:
        """Files of these artifacts were removed to make room."""
        self._event("pruned", {"outputs": list(outputs), "bytes": num_bytes}, durable=True)

    def resumed(self, account: Account) -> None:
        """The run went on: the prompts so far, kept and sampled again."""
        self._event("resumed", {"account": account})

    def run_finished(self, *, status: Status, error: str = "", so_far: Done | None = None) -> None:
        """The command ended, with one of STATUSES; `error` is the sentence if it did not finish.

        With `so_far` a list of runs reads this line alone.
        """
        self._event("run_finished", {"status": status, "error": error, "so_far": so_far}, durable=True)

    def _event(self, name: str, body: Mapping[str, object], *, durable: bool = False) -> None:
        line = json.dumps({"event": name, "time": time.time(), **body}, allow_nan=False, default=str).encode()
        with self._lock:
            append_line(self._events, line, durable=durable)


def read_events(folder: Path, on_damage: OnDamage = refuse) -> Iterator[Event]:
    """Yield every event of a run in order; nothing if the run has no journal yet.

    A line that is not an event is damage, and so are settings without a journal of a run that nobody begins just now.
    """
    path, begin = folder / EVENTS, 0
    if not path.exists() and (folder / RUN).exists() and holder(folder) is None:
        on_damage(CorruptArtifactError(f"{path} is missing, and {RUN} is there", hint=cure(folder)))
    for event, end in read_lines(path, on_damage=on_damage):
        if _is_event(event):
            yield event
        else:
            on_damage(damaged(path, begin))
        begin = end


def num_bytes(folder: Path) -> int:
    """Return the size of a run's journal, which only grows; 0 if it has none."""
    path = folder / EVENTS
    return path.stat().st_size if path.exists() else 0


def last_end(folder: Path) -> list[Event]:
    """Return the end of the last command and the events after it; empty if the journal has none.

    A damaged line raises CorruptArtifactError.
    """
    path = folder / EVENTS
    begin = path.read_bytes().rfind(b'\n{"event": "run_finished"') + 1 if path.exists() else 0
    return [event for event, _ in event_lines(folder, begin)] if begin else []


def _is_event(row: JsonObject) -> TypeGuard[Event]:
    """Return whether a row has what readers of events count on."""
    kind = row.get("event", "")
    needed = _NEEDED.get(kind, ()) if isinstance(kind, str) else ("event",)
    texts = all(isinstance(row[key], str) for key in _TEXTS & row.keys())
    numbers = all(isinstance(row[key], int | float) for key in _NUMBERS & row.keys())
    return texts and numbers and "event" in row and not set(needed) - row.keys()


def event_lines(folder: Path, offset: int) -> Iterator[tuple[Event, int]]:
    """The events of a run's journal as `read_lines` reads them; that they are whole is not looked at."""
    return cast("Iterator[tuple[Event, int]]", read_lines(folder / EVENTS, offset))
