"""Writes one artifact: shards and files that appear whole, a receipt for each, the manifest last."""

import contextlib
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from gradus.data.errors import CorruptArtifactError
from gradus.data.files import replace_file, sweep
from gradus.data.lake.columns import SCHEMA_VERSION
from gradus.data.lake.manifest import FILE_NAME, FileEntry, Manifest, sha256_file
from gradus.data.lake.names import Ref
from gradus.data.lake.row_keys import key_hashes, row_keys
from gradus.data.lake.schema import TABLES, cast_to_schema
from gradus.data.lake.whole_files import entry_of, size_of, whole_file
from gradus.data.records import JsonObject

_RECEIPTS, _SCRATCH = ".receipts", ".scratch"


class ShardWriter:
    """Writes one artifact, whose lock its user holds; what an earlier attempt finished is kept and listed in `done`."""

    def __init__(self, folder: Path, ref: Ref) -> None:
        self.ref = ref
        self.folder = folder
        self._receipts = self.folder / _RECEIPTS
        self._receipts.mkdir(parents=True, exist_ok=True)
        self._entries: dict[str, FileEntry] = dict(self._read_receipts())
        self._hashes: dict[str, npt.NDArray[np.int64]] = {}

    @property
    def done(self) -> frozenset[str]:
        """Names of the shards that are whole (`part-00003`)."""
        return frozenset(name.removesuffix(".parquet") for name in self._entries if name.endswith(".parquet"))

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """The files that are whole, by name."""
        return tuple(self._entries[name] for name in sorted(self._entries))

    @property
    def scratch(self) -> Path:
        """A folder for resumable state, removed when the artifact is committed."""
        folder = self.folder / _SCRATCH
        folder.mkdir(exist_ok=True)
        return folder

    def write_table(self, table: pa.Table, index: int = 0) -> None:
        """Write one shard atomically: unique keys checked, zstd, page checksums."""
        schema = TABLES[self.ref.table]
        conformed = cast_to_schema(table, schema)
        keys = row_keys(conformed, schema, self.folder)
        name = f"part-{index:05d}.parquet"
        with whole_file(self.folder, name) as temporary:
            pq.write_table(conformed, temporary, compression="zstd", write_page_checksum=True)
        self._hashes[name] = key_hashes(keys)
        self._receive(name, rows=conformed.num_rows)

    @contextlib.contextmanager
    def writing(self, name: str) -> Generator[Path]:
        """Return a temporary path, as `whole_file` does; the file is listed at the end of the block."""
        with whole_file(self.folder, name) as temporary:
            yield temporary
        self._receive(name)

    def write_file(self, name: str, content: bytes, *, receipt: bool = True) -> None:
        """Write one file atomically; the name may have a folder before it.

        Without a receipt the next attempt writes it again: right for what is written just before the manifest.
        """
        with whole_file(self.folder, name) as temporary:
            temporary.write_bytes(content)
        self._receive(name, receipt=receipt)

    def copy_file(self, name: str, source: Path) -> None:
        """Copy one file atomically; weights never pass through memory as a whole."""
        with self.writing(name) as temporary:
            shutil.copyfile(source, temporary)

    def copy_known(self, name: str, source: Path, sha256: str) -> None:
        """Copy one file whose digest is known; raise CorruptArtifactError if what was copied has another."""
        self.copy_file(name, source)
        if self._entries[name].sha256 != sha256:
            raise CorruptArtifactError(f"{source} was changed while it was copied", hint="repeat the command")

    def move_files(self, folder: Path, below: str = "") -> None:
        """Take the files of a folder of the same file system, such as one in `scratch`, without a copy.

        `below` is put before their names.
        """
        for path in sorted(folder.iterdir()):
            with self.writing(f"{below}{path.name}") as temporary:
                path.replace(temporary)

    def take_over(self) -> None:
        """List the files, too, that other processes have finished since this writer opened."""
        self._entries = dict(self._read_receipts())

    def list_written(self, entries: Iterable[FileEntry]) -> None:
        """List files that several processes have written to the folder whole, by the digests that those computed."""
        self._entries.update({entry.name: entry for entry in entries})

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Read back a shard that an earlier attempt finished (its bytes were verified when this writer opened)."""
        return pq.read_table(self.folder / f"{name}.parquet", columns=columns)

    def commit(
        self,
        *,
        identity: JsonObject | None = None,
        config: JsonObject | None = None,
        parents: dict[str, list[str]] | None = None,
        versions: dict[str, str] | None = None,
    ) -> None:
        """Write the manifest, the last act: keys checked across shards, receipts and scratch removed after."""
        entries = self.entries
        if self.ref.table in TABLES:
            self._check_unique_across([e.name for e in entries if e.name.endswith(".parquet")])
        manifest = Manifest(
            table=self.ref.table,
            digest=self.ref.digest,
            schema_version=SCHEMA_VERSION,
            identity=dict(identity or {}),
            config=dict(config or {}),
            parents=parents or {},
            versions=versions or {},
            files=entries,
        )
        self._end(manifest.sealed())

    def commit_copy(self, manifest: Manifest, files: Mapping[str, Path]) -> None:
        """Copy every file that a verified manifest names, then write it; CorruptArtifactError if one has changed."""
        for entry in manifest.files:
            self.copy_known(entry.name, files[entry.name], entry.sha256)
        self._end(manifest)

    def _end(self, manifest: Manifest) -> None:
        with whole_file(self.folder, FILE_NAME) as temporary:
            temporary.write_bytes(manifest.to_bytes())
        sweep(self.folder)  # ranks that died, too
        shutil.rmtree(self._receipts)
        shutil.rmtree(self.folder / _SCRATCH, ignore_errors=True)

    def _check_unique_across(self, shards: list[str]) -> None:
        """Compare the keys of all shards, by their hashes; only where two are equal the keys themselves."""
        schema = TABLES[self.ref.table]

        def keys_of(name: str) -> pa.Table:
            there = pq.read_schema(self.folder / name).names
            wanted = [each for each in (*schema.key, schema.own_key) if each in there]
            return pq.read_table(self.folder / name, columns=wanted)

        for name in set(shards) - set(self._hashes):  # those of an earlier attempt
            self._hashes[name] = key_hashes(row_keys(keys_of(name), schema, self.folder))
        if len(shards) > 1:
            found = np.sort(np.concatenate([self._hashes[name] for name in shards]))
            if bool((found[1:] == found[:-1]).any()):
                row_keys(pa.concat_tables(map(keys_of, shards), promote_options="default"), schema, self.folder)

    def _receive(self, name: str, rows: int | None = None, *, receipt: bool = True) -> None:
        entry = entry_of(self.folder, name, rows)
        if receipt:
            _write_receipt(self.folder, entry)
        self._entries[name] = entry

    def _read_receipts(self) -> Iterator[tuple[str, FileEntry]]:
        for receipt in sorted(self._receipts.glob("*.json")):
            try:
                entry = FileEntry.model_validate_json(receipt.read_bytes())
            except ValidationError:  # no name of a file: nothing is read or removed by it
                receipt.unlink()
                continue
            path = self.folder / entry.name
            if size_of(path) == entry.bytes and sha256_file(path) == entry.sha256:
                yield entry.name, entry
            else:
                receipt.unlink()
                path.unlink(missing_ok=True)


def reopen(folder: Path, shards: Iterable[FileEntry]) -> None:
    """Make a finished artifact an attempt that was not finished and has these shards; the manifest goes last."""
    (folder / _RECEIPTS).mkdir(exist_ok=True)
    for entry in shards:
        _write_receipt(folder, entry)
    (folder / FILE_NAME).unlink()


def _write_receipt(folder: Path, entry: FileEntry) -> None:
    path = folder / _RECEIPTS / f"{entry.name.replace('/', '+')}.json"
    replace_file(path, entry.model_dump_json(), durable=True)
