"""A file of JSON lines with check values, to which lines are only ever appended: the journal of a run.

A line ends with `"check": "0123456789abcdef"}`, a digest of the line and of the check of the line above it. The next
reader finds a flipped bit, and a line that was removed, added or moved. Lines of earlier versions have no check and are
read as they are; below a line that has one they are damage. Not found: lines missing at the end, as after a kill.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from gradus.data.errors import CorruptArtifactError, OnDamage, refuse
from gradus.data.records import JsonObject

_CHECK = "check"
_BEGIN, _CLOSE = b', "check": "', b'"}\n'
_HEX = frozenset(b"0123456789abcdef")
_CHECK_BYTES = 16
_END_BYTES = len(_BEGIN) + _CHECK_BYTES + len(_CLOSE)


def read_lines(
    path: Path, offset: int = 0, end: int | None = None, on_damage: OnDamage = refuse
) -> Iterator[tuple[JsonObject, int]]:
    """Yield whole lines from a byte offset on, each with the offset behind it; a torn last line is left alone.

    A line that cannot be read, or is not the one that was written there, is damage and left out.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        above = _check_at(file, offset)
        while end is None or offset < end:
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


def append_lines(path: Path, rows: Sequence[bytes], *, durable: bool) -> tuple[int, int]:
    """Append JSON objects in one write, or not at all; return the byte range written."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(descriptor, "r+b", buffering=0) as file:  # noqa: PTH123 - a descriptor
        begin = file.seek(0, os.SEEK_END)
        content, above = b"", _check_at(file, begin)
        for row in rows:
            above = _digest(above, row[:-1])
            content += row[:-1] + _BEGIN + above + _CLOSE
        if os.write(descriptor, content) != len(content):
            os.ftruncate(descriptor, begin)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(descriptor)
    return begin, begin + len(content)


def mend(path: Path) -> None:
    """Cut off what a killed writer left behind the last whole line; raise CorruptArtifactError if a line is damaged."""
    if not path.exists() or path.stat().st_size == 0:
        return
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
