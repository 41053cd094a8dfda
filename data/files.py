"""Files that appear whole or not at all: written under a temporary name beside the final one, then renamed.

replace_file(folder / "state.json", content)
with replacing(folder / "part-00000.parquet", durable=True) as temporary:
pq.write_table(rows, temporary)
"""

import contextlib
import json
import os
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp"
"""Suffix of the name of a temporary file; the name begins with a dot."""


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = False) -> Generator[Path]:
    """Return a temporary path to write to; at the end of the block it becomes `path`, which an error leaves as it was.

    `durable`: content and name are on the disk when the block is left, so that a power cut loses neither.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    temporary.unlink(missing_ok=True)  # in a folder from elsewhere a link may lie there, which writing would follow
    try:
        yield temporary
        if durable:
            _fsync(temporary)
        os.replace(temporary, path)
        if durable:
            _fsync(path.parent)
    except OSError as error:
        if error.filename == str(temporary):  # named is the file that was asked for
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes | str, *, durable: bool = False) -> None:
    """Write a whole file in the place of another, or where there is none; text is written as UTF-8."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_cache(path: Path, body: object) -> None:
    """Write JSON under its checksum in the place of another file."""
    content = json.dumps(body, separators=(",", ":")).encode()
    replace_file(path, _checksum(content) + b"\n" + content)


def read_cache(path: Path) -> Any:
    """Return what `write_cache` wrote; None if the file is lost or damaged."""
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
        return json.loads(content) if checksum == _checksum(content) else None
    except (OSError, ValueError):
        return None


def sweep(folder: Path) -> None:
    """Remove temporary files in a folder and below it; no process may be writing there."""
    for stale in folder.rglob(f".*{TEMPORARY}"):
        stale.unlink(missing_ok=True)


def _checksum(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}".encode()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
