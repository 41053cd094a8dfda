"""Index of the manifests of a lake, a file for each table: none is opened by two queries.

`<lake>/.index/<table>.json` holds a checksum and one JSON object. It is a cache: an entry counts only while its
manifest has the size, time and inode that it had, and a file that is lost or damaged is written anew. Two commands at
once each replace it whole.
"""

import base64
import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.files import read_cache, write_cache
from gradus.data.lake.manifest import FILE_NAME, FileEntry
from gradus.data.lake.store import Ref, Store

_FOLDER = ".index"
_VERSION = 1
_FIELDS = tuple(FileEntry.model_fields)


@dataclass(frozen=True, slots=True)
class Listed:
    """A finished artifact whose files have their sizes, or were pruned: what readers of many need of its manifest."""

    parents: Mapping[str, Sequence[str]]
    files: tuple[FileEntry, ...]


class _Kept(TypedDict):
    proof: list[int]
    parents: dict[str, list[str]]
    files: list[list[Any]]
    """The values of each file, in the order of the fields."""
    schemas: dict[str, int]
    """Numbers of the schemas of those shards that were opened, by name."""


class _Table(TypedDict):
    version: int
    entries: dict[str, _Kept]
    schemas: list[str]
    """Arrow's own form, in base64."""


class Index:
    """Reads manifests through what was kept of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tables: dict[str, _Table] = {}
        self._schemas: dict[tuple[str, int], pa.Schema] = {}
        self._changed: set[str] = set()

    def find(self, ref: Ref) -> Listed | None:
        """Return what the manifest says, None if there is none; raise as `Store.whole` does."""
        path = f"{self._store.root}/{ref.table}/{ref.digest}/{FILE_NAME}"
        try:
            stat = os.stat(path)  # noqa: PTH116 - many files, and pathlib is slow
        except OSError:
            return None
        proof = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        if ref.table not in self._tables:
            self._tables[ref.table] = _read(self._path(ref.table))
        entries = self._tables[ref.table]["entries"]
        kept = entries.get(ref.digest)
        if kept is None or kept["proof"] != proof:
            manifest = self._store.manifest(ref)
            files = [list(entry.model_dump().values()) for entry in manifest.files]
            kept = _Kept(proof=proof, parents=manifest.parents, files=files, schemas={})
            entries[ref.digest] = kept
            self._changed.add(ref.table)
        named = tuple(FileEntry(**dict(zip(_FIELDS, each, strict=True))) for each in kept["files"])
        self._store.check_sizes(ref, named)
        return Listed(kept["parents"], named)

    def schema(self, ref: Ref, shard: Path) -> pa.Schema:
        """Return the schema of a verified shard of an artifact that was found; pa.ArrowInvalid if it is not Parquet."""
        table = self._tables[ref.table]
        kept = table["entries"][ref.digest]["schemas"]
        if shard.name not in kept:
            form = base64.b64encode(pq.read_schema(shard).serialize()).decode()
            if form not in table["schemas"]:
                table["schemas"].append(form)
            kept[shard.name] = table["schemas"].index(form)
            self._changed.add(ref.table)
        key = (ref.table, kept[shard.name])
        if key not in self._schemas:
            self._schemas[key] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(table["schemas"][key[1]])))
        return self._schemas[key]

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Write at the end of the block what was read and not kept yet; a lake that cannot be written is read again."""
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                for table in sorted(self._changed):
                    self._write(table)
            self._changed.clear()

    def _write(self, table: str) -> None:
        there = {path.name for path in (self._store.root / table).iterdir()}
        kept = self._tables[table]
        entries = {digest: entry for digest, entry in kept["entries"].items() if digest in there}
        self._path(table).parent.mkdir(parents=True, exist_ok=True)
        write_cache(self._path(table), {**kept, "entries": entries})

    def _path(self, table: str) -> Path:
        return self._store.root / _FOLDER / f"{table}.json"


def _read(path: Path) -> _Table:
    """Return the index of a table; nothing if the file is lost, damaged or of another version."""
    body = read_cache(path)
    if isinstance(body, dict) and body.get("version") == _VERSION:
        return cast("_Table", body)
    return {"version": _VERSION, "entries": {}, "schemas": []}
