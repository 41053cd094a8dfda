"""The artifact store: immutable shards, a manifest written last, and reads that verify.

    store = Store(Path("lake"))
    with_rows = store.put("problems", table)        # a user's own rows, named by their content
    store.read(with_rows)                           # verified against the manifest's SHA-256

A file appears under a temporary name, is flushed to disk and renamed; a shard counts as done when its receipt
(name, sha256, bytes, rows) is there too; the artifact counts as done when its manifest is.
Left out: object storage (local folders only), concurrent writers (see gradus.tasks.host.runlock).
"""

import contextlib
import hashlib
import re
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError, CorruptArtifactError, PrunedError
from gradus.data.files import TEMPORARY, replace_file
from gradus.data.lake.manifest import (
    CURE,
    FILE_NAME,
    REPORT,
    FileEntry,
    Manifest,
    identity_digest,
    read_manifest,
    sha256_file,
)
from gradus.data.lake.pruned import read_pruned
from gradus.data.lake.row_keys import content_digest, key_hashes, row_keys
from gradus.data.lake.schema import CHECKPOINTS, SCHEMA_VERSION, TABLES, cast_to_schema, read_shard
from gradus.data.lake.whole_files import entry_of, whole_file
from gradus.data.records import JsonObject

_RECEIPTS, _SCRATCH = ".receipts", ".scratch"
_TABLE_NAME = re.compile(r"[a-z_]{1,40}")
_DIGEST = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Ref:
    """The name of one artifact.

    >>> str(Ref.parse("rollouts/00aa11bb22cc33dd"))
    'rollouts/00aa11bb22cc33dd'
    """

    table: str
    digest: str

    def __str__(self) -> str:
        return f"{self.table}/{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Ref":
        """Read `table/digest`; raise BadInputError if the text is anything else."""
        table, _, digest = text.partition("/")
        if not (_TABLE_NAME.fullmatch(table) and _DIGEST.fullmatch(digest)):
            raise BadInputError(f"{text!r} is not an artifact reference", hint="write it as table/digest")
        return cls(table, digest)


class Store:
    """A folder of artifacts: `<root>/<table>/<digest>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._verified: dict[Path, tuple[int, int, str]] = {}

    def path(self, ref: Ref) -> Path:
        """The folder of an artifact, whether it exists or not."""
        return self.root / ref.table / ref.digest

    def find(self, ref: Ref) -> Manifest | None:
        """The manifest, if the artifact is finished and every file has its size, or was pruned; None otherwise."""
        folder = self.path(ref)
        if not (folder / FILE_NAME).exists():
            return None
        try:
            manifest = self.manifest(ref)
        except CorruptArtifactError:
            return None
        pruned = self.pruned(ref)
        sizes_hold = all(_size(folder / f.name) == f.bytes for f in manifest.files if f.name not in pruned)
        return manifest if sizes_hold else None

    def pruned(self, ref: Ref) -> frozenset[str]:
        """Names of the files of an artifact that were removed to make room; its manifest still names them."""
        return read_pruned(self.path(ref)).files

    def manifest(self, ref: Ref) -> Manifest:
        """Return the manifest; raise CorruptArtifactError if there is none or it is that of another artifact."""
        manifest = read_manifest(self.path(ref))
        if (manifest.table, manifest.digest) != (ref.table, ref.digest):
            raise CorruptArtifactError(
                f"the manifest in {self.path(ref)} is that of {manifest.table}/{manifest.digest}",
                hint="an artifact was moved by hand: move it back or delete the folder",
            )
        if manifest.schema_version > SCHEMA_VERSION:
            raise CorruptArtifactError(
                f"{self.path(ref)} was written by a newer version (schema {manifest.schema_version})",
                hint="upgrade gradus to read it",
            )
        return manifest

    def content_key(self, ref: Ref) -> str:
        """What a stage that reads the artifact depends on: the bytes of a table, the identity of a checkpoint.

        Two attempts that made the same table by different ways are the same input to what comes after. A checkpoint
        stays under its own name, since rollouts name the policy that made them by it.
        """
        if ref.table == CHECKPOINTS:
            return str(ref)
        told = "".join(f"{f.name}\0{f.sha256}\n" for f in self.manifest(ref).shards)
        return f"{ref.table}:{hashlib.sha256(told.encode()).hexdigest()[:32]}"

    def verify(self, ref: Ref) -> Manifest:
        """Check every file of an artifact against its SHA-256; CorruptArtifactError names the first that differs."""
        return self._verified_files(ref, frozenset())

    def verify_kept(self, ref: Ref) -> Manifest:
        """Check every file of an artifact that was not pruned."""
        return self._verified_files(ref, self.pruned(ref))

    def _verified_files(self, ref: Ref, but: frozenset[str]) -> Manifest:
        manifest = self.manifest(ref)
        for entry in manifest.files:
            if entry.name not in but:
                self._verify_file(ref, entry)
        return manifest

    def files(self, ref: Ref) -> list[Path]:
        """The verified Parquet shards, in order."""
        shards = self.manifest(ref).shards
        for entry in shards:
            self._verify_file(ref, entry)
        return [self.path(ref) / entry.name for entry in shards]

    def columns(self, ref: Ref) -> list[str]:
        """Names of the columns of a table: those of its schema, then those that its files have beside them."""
        there = (name for path in self.files(ref) for name in pq.read_schema(path).names)
        return list(dict.fromkeys([*TABLES[ref.table].arrow.names, *there]))

    def read(self, ref: Ref, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a table, verified; columns that an older file lacks are null.

        No other columns than those asked for are decoded; one that neither schema nor files know is left out.
        """
        schema = TABLES[ref.table] if columns is None else TABLES[ref.table].restricted(columns)
        parts = [read_shard(path, schema, columns) for path in self.files(ref)]
        table = pa.concat_tables(parts, promote_options="default") if parts else schema.arrow.empty_table()
        return table if columns is None else table.select([name for name in columns if name in table.column_names])

    def file(self, ref: Ref, name: str) -> Path | None:
        """One verified file of an artifact; None if the artifact has no such file."""
        for entry in self.manifest(ref).files:
            if entry.name == name:
                self._verify_file(ref, entry)
                return self.path(ref) / name
        return None

    def read_file(self, ref: Ref, name: str) -> bytes | None:
        """The verified content of one file of an artifact; None if the artifact has no such file."""
        return path.read_bytes() if (path := self.file(ref, name)) else None

    def writer(self, ref: Ref) -> "ShardWriter":
        """Begin, or go on with, an artifact; stale temporary files of a dead attempt are swept."""
        return ShardWriter(self, ref)

    def discard(self, ref: Ref) -> None:
        """Remove the files of an artifact that has a manifest, valid or not; shards of an open attempt stay.

        The manifest goes first, so that no reader sees half of an artifact; what begins with a dot (locks) stays.
        """
        folder = self.path(ref)
        if not (folder / FILE_NAME).exists():
            return
        (folder / FILE_NAME).unlink()
        for path in (each for each in folder.iterdir() if not each.name.startswith(".")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def remove_empty(self, ref: Ref) -> None:
        """Remove the folder of an artifact without files; its lock, which the caller holds, goes with it."""
        folder = self.path(ref)
        if not any(path.is_file() for path in folder.rglob("*") if not path.name.startswith(".")):
            shutil.rmtree(folder, ignore_errors=True)

    def put(self, table_name: str, table: pa.Table) -> Ref:
        """Store a user's rows as an artifact named by their content."""
        conformed = cast_to_schema(table, TABLES[table_name])
        identity: JsonObject = {"table": table_name, "rows": content_digest(conformed)}
        ref = Ref(table_name, identity_digest(identity))
        if self.find(ref) is None:
            writer = self.writer(ref)
            writer.write_table(conformed)
            writer.commit(identity=identity)
        return ref

    def adopt(self, folder: Path) -> Ref:
        """Store a user's policy folder as a checkpoint named by the content of its files."""
        names = sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
        return self.adopt_files({name: folder / name for name in names if name not in (FILE_NAME, REPORT)}, {})

    def adopt_files(self, files: Mapping[str, Path | bytes], parents: dict[str, list[str]]) -> Ref:
        """Store files, by path or content, as a checkpoint named by their content; `parents` is what they rest on."""
        sha256 = {
            name: hashlib.sha256(file).hexdigest() if isinstance(file, bytes) else sha256_file(file)
            for name, file in files.items()
        }
        identity: JsonObject = {"table": CHECKPOINTS, "files": sha256}
        ref = Ref(CHECKPOINTS, identity_digest(identity))
        if self.find(ref) is None:
            writer = self.writer(ref)
            for name, file in sorted(files.items()):
                _ = writer.write_file(name, file) if isinstance(file, bytes) else writer.copy_file(name, file)
            writer.commit(identity=identity, parents=parents)
        return ref

    def _verify_file(self, ref: Ref, entry: FileEntry) -> None:
        path = self.path(ref) / entry.name
        try:
            stat = path.stat()
        except FileNotFoundError:
            if entry.name in self.pruned(ref):
                raise PrunedError(
                    f"{entry.name} of {ref} was pruned on {read_pruned(self.path(ref)).at}",
                    hint=f"`gradus restore {ref}` computes it again, and says before what that takes",
                ) from None
            raise CorruptArtifactError(f"{path} is missing", hint=CURE) from None
        # Hashing is skipped only for a file already hashed by this process and not written since.
        seen = (stat.st_size, stat.st_mtime_ns, entry.sha256)
        if self._verified.get(path) == seen:
            return
        if stat.st_size != entry.bytes or sha256_file(path) != entry.sha256:
            raise CorruptArtifactError(f"{path} does not have the bytes that its manifest names", hint=CURE)
        self._verified[path] = seen


class ShardWriter:
    """Writes one artifact; what an earlier attempt finished is kept and listed in `done`."""

    def __init__(self, store: Store, ref: Ref) -> None:
        self.ref = ref
        self.folder = store.path(ref)
        self._receipts = self.folder / _RECEIPTS
        self._receipts.mkdir(parents=True, exist_ok=True)
        for stale in self.folder.rglob(f".*{TEMPORARY}"):
            stale.unlink(missing_ok=True)
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

    def write_table(self, table: pa.Table, index: int = 0) -> FileEntry:
        """Write one shard atomically: unique keys checked, zstd, page checksums."""
        schema = TABLES[self.ref.table]
        conformed = cast_to_schema(table, schema)
        keys = row_keys(conformed, schema, self.folder)
        name = f"part-{index:05d}.parquet"
        with whole_file(self.folder, name) as temporary:
            pq.write_table(conformed, temporary, compression="zstd", write_page_checksum=True)
        self._hashes[name] = key_hashes(keys)
        return self._receive(name, rows=conformed.num_rows)

    @contextlib.contextmanager
    def writing(self, name: str) -> Generator[Path]:
        """Return a temporary path; what lies there at the end of the block becomes the file, whole or not at all.

        The name may have a folder before it.
        """
        with whole_file(self.folder, name) as temporary:
            yield temporary
        self._receive(name)

    def write_file(self, name: str, content: bytes) -> FileEntry:
        """Write one file atomically; the name may have a folder before it."""
        with self.writing(name) as temporary:
            temporary.write_bytes(content)
        return self._entries[name]

    def copy_file(self, name: str, source: Path) -> FileEntry:
        """Copy one file atomically; weights never pass through memory as a whole."""
        with self.writing(name) as temporary:
            shutil.copyfile(source, temporary)
        return self._entries[name]

    def move_file(self, name: str, source: Path) -> FileEntry:
        """Take a file of the same file system, such as one in `scratch`, without a copy."""
        with self.writing(name) as temporary:
            source.replace(temporary)
        return self._entries[name]

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
    ) -> Manifest:
        """Write the manifest, the last act: keys checked across shards, receipts and scratch removed after."""
        entries = self.entries
        if self.ref.table in TABLES:
            self._check_unique_across([e.name for e in entries if e.name.endswith(".parquet")])
        whole = Manifest(
            table=self.ref.table,
            digest=self.ref.digest,
            schema_version=SCHEMA_VERSION,
            identity=dict(identity or {}),
            config=dict(config or {}),
            parents=parents or {},
            versions=versions or {},
            files=entries,
        ).sealed()
        with whole_file(self.folder, FILE_NAME) as temporary:
            temporary.write_bytes(whole.to_bytes())
        shutil.rmtree(self._receipts)
        shutil.rmtree(self.folder / _SCRATCH, ignore_errors=True)
        return whole

    def _check_unique_across(self, shards: list[str]) -> None:
        """Compare the keys of all shards, by their hashes; only where two are equal the keys themselves."""
        schema = TABLES[self.ref.table]

        def keys_of(name: str) -> pa.Table:
            return pq.read_table(self.folder / name, columns=list(schema.key))

        for name in set(shards) - set(self._hashes):  # those of an earlier attempt
            self._hashes[name] = key_hashes(row_keys(keys_of(name), schema, self.folder))
        if len(shards) > 1:
            found = np.sort(np.concatenate([self._hashes[name] for name in shards]))
            if bool((found[1:] == found[:-1]).any()):
                row_keys(pa.concat_tables(map(keys_of, shards), promote_options="default"), schema, self.folder)

    def _receive(self, name: str, rows: int | None = None) -> FileEntry:
        entry = entry_of(self.folder, name, rows)
        replace_file(self._receipts / f"{name.replace('/', '+')}.json", entry.model_dump_json(), durable=True)
        self._entries[name] = entry
        return entry

    def _read_receipts(self) -> Iterator[tuple[str, FileEntry]]:
        for receipt in sorted(self._receipts.glob("*.json")):
            entry = FileEntry.model_validate_json(receipt.read_bytes())
            path = self.folder / entry.name
            if _size(path) == entry.bytes and sha256_file(path) == entry.sha256:
                yield entry.name, entry
            else:
                receipt.unlink()
                path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
