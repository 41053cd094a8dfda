"""Files that appear whole or not at all: written under a temporary name beside the final one, then renamed.

replace_file(folder / "state.json", content)
with replacing(folder / "part-00000.parquet", durable=True) as temporary:
pq.write_table(rows, temporary)
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

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
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes | str, *, durable: bool = False) -> None:
    """Write a whole file in the place of another, or where there is none; text is written as UTF-8."""
    with replacing(path, durable=durable) as temporary:
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode())


def sweep(folder: Path) -> None:
    """Remove temporary files in a folder and below it; no process may be writing there."""
    for stale in folder.rglob(f".*{TEMPORARY}"):
        stale.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
