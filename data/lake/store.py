"""The artifact store: immutable shards, a manifest written last, and reads that verify.

    store = Store(Path("lake"))
    with_rows = store.put("problems", table)        # a user's own rows, named by their content
    store.read(with_rows)                           # verified against the manifest's SHA-256

A file appears under a temporary name, is flushed to disk and renamed; a shard counts as done when its receipt
(name, sha256, bytes, rows) is there too; the artifact counts as done when its manifest is.
A writer is used under the artifact's lock (gradus.data.runlock). Left out: object storage (local folders only).
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import CorruptArtifactError, PrunedError
from gradus.data.lake.columns import SCHEMA_VERSION
from gradus.data.lake.manifest import (
    FILE_NAME,
    NAMED,
    REPORT,
    FileEntry,
    Manifest,
    identity_digest,
    pruned_files,
    read_manifest,
    sha256_file,
)
from gradus.data.lake.names import Ref, regular_files
from gradus.data.lake.row_keys import content_digest, values_digest
from gradus.data.lake.schema import CHECKPOINTS, TABLES, cast_to_schema, read_shard
from gradus.data.lake.whole_files import damaged, size_of
from gradus.data.lake.writer import ShardWriter, reopen
from gradus.data.records import JsonObject
from gradus.data.runlock import LOCK, held

__all__ = ["Ref", "ShardWriter", "Store"]


class Store:
    """A folder of artifacts: `<root>/<table>/<digest>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._verified: dict[Path, tuple[int, int, str]] = {}
        self._contents: dict[tuple[str, ...], str] = {}
        self._manifests: dict[Ref, tuple[tuple[int, int, int], Manifest]] = {}

    def path(self, ref: Ref) -> Path:
        """The folder of an artifact, whether it exists or not."""
        return self.root / ref.table / ref.digest

    def find(self, ref: Ref) -> Manifest | None:
        """The manifest, if the artifact is finished and every file has its size, or was pruned; None otherwise."""
        try:
            return self.whole(ref)
        except CorruptArtifactError:
            return None

    def whole(self, ref: Ref) -> Manifest | None:
        """The manifest, None if unfinished; CorruptArtifactError for a damaged one, or a file of another size."""
        if not (self.path(ref) / FILE_NAME).exists():
            return None
        manifest = self.manifest(ref)
        self.check_sizes(ref, manifest.files)
        return manifest

    def check_sizes(self, ref: Ref, files: Iterable[FileEntry]) -> None:
        """Raise CorruptArtifactError if a file of an artifact lacks its size and was not pruned."""
        folder, named = self.path(ref), tuple(files)
        for entry in named:
            if size_of(f"{folder}/{entry.name}") != entry.bytes and entry.name not in pruned_files(folder, named):
                raise damaged(folder / entry.name)

    def pruned(self, ref: Ref) -> frozenset[str]:
        """Return the weights of a checkpoint that were removed to make room; none if there is no such artifact."""
        if not (self.path(ref) / FILE_NAME).exists():
            return frozenset()
        return pruned_files(self.path(ref), self.manifest(ref).files)

    def pruned_on(self, ref: Ref) -> str:
        """Return the day on which weights of a checkpoint were removed; empty if all are there, or if it is damaged."""
        with contextlib.suppress(CorruptArtifactError):
            if ref.table == CHECKPOINTS and self.pruned(ref):  # a finished artifact's folder has no other change
                return date.fromtimestamp(self.path(ref).stat().st_mtime).isoformat()
        return ""

    def manifest(self, ref: Ref) -> Manifest:
        """Return the manifest; raise CorruptArtifactError if there is none or it is that of another artifact.

        One that was read before is read again only if its file changed: a stage asks for it a dozen times.
        """
        found = _stamp(self.path(ref) / FILE_NAME)
        known = self._manifests.get(ref)
        if known is None or known[0] != found:
            self._manifests[ref] = known = found, self._read_manifest(ref)
        return known[1]

    def _read_manifest(self, ref: Ref) -> Manifest:
        manifest = read_manifest(self.path(ref))
        if manifest.ref != ref:
            message = f"the manifest in {self.path(ref)} is that of {manifest.table}/{manifest.digest}"
            raise CorruptArtifactError(message, hint="an artifact was moved by hand: move it back or delete the folder")
        if manifest.schema_version > SCHEMA_VERSION:
            message = f"{self.path(ref)} was written by a newer version (schema {manifest.schema_version})"
            raise CorruptArtifactError(message, hint="upgrade gradus to read it")
        return manifest

    def content_key(self, ref: Ref, columns: Sequence[str] | None = None) -> str:
        """Return the input key of a stage that reads the artifact: the bytes of a table, or the values of some columns.

        Two attempts that made the same table by different ways are the same input to what comes after. A checkpoint
        stays under its own name, since rollouts name the policy that made them by it.
        """
        if ref.table == CHECKPOINTS:
            return str(ref)
        manifest = self.manifest(ref)
        if columns is not None:
            return f"{ref.table}:{self._values_digest(manifest, columns)}"
        listed = "".join(f"{f.name}\0{f.sha256}\n" for f in manifest.shards)
        return f"{ref.table}:{hashlib.sha256(listed.encode()).hexdigest()[:32]}"

    def _values_digest(self, manifest: Manifest, columns: Sequence[str]) -> str:
        """The digest of the values of some columns, computed once for the same bytes."""
        known = (manifest.sha256, *columns)
        if known not in self._contents:
            schema = TABLES[manifest.table].restricted(columns)
            shards = (read_shard(path, schema, columns) for path in self.files(manifest.ref))
            self._contents[known] = values_digest(_selected(shard, columns) for shard in shards)
        return self._contents[known]

    def verify(self, ref: Ref, but: Collection[str] = ()) -> Manifest:
        """Check every file of an artifact but some against its SHA-256; CorruptArtifactError names the first odd."""
        manifest = self.manifest(ref)
        self.verified(ref, [entry for entry in manifest.files if entry.name not in but])
        return manifest

    def files(self, ref: Ref) -> list[Path]:
        """The verified Parquet shards, in order."""
        return self.verified(ref, self.manifest(ref).shards)

    def verified(self, ref: Ref, entries: Sequence[FileEntry]) -> list[Path]:
        """Check files of an artifact against their SHA-256 and return their paths."""
        for entry in entries:
            self._verify_file(ref, entry)
        return [self.path(ref) / entry.name for entry in entries]

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
        return table if columns is None else _selected(table, columns)

    def rows_with(self, ref: Ref, key: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """The verified rows whose `key` is one of some values; of row groups without one only `key` is decoded."""
        schema = TABLES[ref.table].restricted(columns)
        parts = [cast_to_schema(part, schema) for path in self.files(ref) for part in _rows(path, key, values, columns)]
        return _selected(pa.concat_tables([schema.arrow.empty_table(), *parts], promote_options="default"), columns)

    def file(self, ref: Ref, name: str) -> Path | None:
        """One verified file of an artifact; None if the artifact has no such file."""
        named = [entry for entry in self.manifest(ref).files if entry.name == name]
        return next(iter(self.verified(ref, named)), None)

    def read_file(self, ref: Ref, name: str) -> bytes | None:
        """The verified content of one file of an artifact; None if the artifact has no such file."""
        return path.read_bytes() if (path := self.file(ref, name)) else None

    def writer(self, ref: Ref) -> ShardWriter:
        """Begin, or continue, an artifact whose lock the caller holds."""
        return ShardWriter(self.path(ref), ref)

    def discard(self, ref: Ref) -> None:
        """Remove the files of an artifact that has a manifest, valid or not; shards of an open attempt stay.

        The manifest goes first, so that no reader sees half of an artifact; what begins with a dot (locks) stays.
        """
        if (self.path(ref) / FILE_NAME).exists():
            self._clear(ref, lambda name: name.startswith("."))

    def reopen(self, ref: Ref) -> None:
        """Let a finished artifact be written again by an attempt that begins with its shards, verified."""
        reopen(self.path(ref), self.verify(ref).shards)

    def remove_empty(self, ref: Ref) -> None:
        """Remove the folder of an artifact without files; its lock, which the caller holds, goes with it."""
        folder = self.path(ref)
        if not any(path.is_file() for path in folder.rglob("*") if not path.name.startswith(".")):
            shutil.rmtree(folder, ignore_errors=True)

    def put(self, table_name: str, table: pa.Table, of: Ref | None = None) -> Ref:
        """Store a user's rows as an artifact named by their content, and by the artifact `of` that they are about."""
        conformed = cast_to_schema(table, TABLES[table_name])
        identity: JsonObject = {"table": table_name, "rows": content_digest(conformed)}
        parents = {} if of is None else {of.table: [str(of)]}
        ref = Ref(table_name, identity_digest(identity if of is None else {**identity, **parents}))
        with self.missing(ref) as writer:
            if writer is not None:
                writer.write_table(conformed)
                writer.commit(identity={**identity, **parents}, parents=parents)
        return ref

    def adopt(self, folder: Path) -> Ref:
        """Store a user's policy folder as a checkpoint named by the content of its files."""
        found = regular_files(folder)
        return self.adopt_files({n: path for n, path in found.items() if n not in (FILE_NAME, REPORT)}, {})

    def adopt_files(self, files: Mapping[str, Path | bytes], parents: dict[str, list[str]], named: str = "") -> Ref:
        """Store files, by path or content, as a checkpoint of their digest; `parents` is what they rest on.

        `named` is what the user called it, which the manifest keeps from the first time.
        """
        sha256 = {
            name: hashlib.sha256(file).hexdigest() if isinstance(file, bytes) else sha256_file(file)
            for name, file in files.items()
        }
        identity: JsonObject = {"table": CHECKPOINTS, "files": sha256}
        ref = Ref(CHECKPOINTS, identity_digest(identity))
        with self.missing(ref) as writer:
            if writer is not None:
                for name, file in sorted(files.items()):
                    if isinstance(file, bytes):
                        writer.write_file(name, file)
                    else:
                        writer.copy_known(name, file, sha256[name])
                writer.commit(identity=identity, config={NAMED: named} if named else {}, parents=parents)
        return ref

    def take(self, manifest: Manifest, files: Mapping[str, Path]) -> None:
        """Copy an artifact of another lake, of which every file was verified, unless it is here."""
        with self.missing(manifest.ref) as writer:
            if writer is not None:
                writer.commit_copy(manifest, files)

    @contextlib.contextmanager
    def missing(self, ref: Ref) -> Generator[ShardWriter | None]:
        """Return the writer of an artifact that is not here, its lock held; None if it is, or another process made it.

        What is left of an attempt to make it goes, and so does what is written if an error ends the block.
        """
        if self.find(ref) is not None:
            yield None
            return
        with held(self.path(ref)):
            if self.find(ref) is not None:
                yield None
                return
            self._clear(ref, lambda name: name == LOCK)
            try:
                yield self.writer(ref)
            except BaseException:
                self._clear(ref, lambda name: name == LOCK)
                self.remove_empty(ref)
                raise

    def _clear(self, ref: Ref, stays: Callable[[str], bool]) -> None:
        """Remove everything of an artifact but names that stay; the manifest goes first."""
        folder = self.path(ref)
        (folder / FILE_NAME).unlink(missing_ok=True)
        for path in (each for each in folder.iterdir() if not stays(each.name)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _verify_file(self, ref: Ref, entry: FileEntry) -> None:
        path = self.path(ref) / entry.name
        try:
            stat = path.stat()
        except FileNotFoundError:
            if entry.name in self.pruned(ref):
                hint = f"`gradus restore {ref}` computes it again, and says before what that takes"
                raise PrunedError(f"{entry.name} of {ref} was pruned on {self.pruned_on(ref)}", hint=hint) from None
            raise damaged(path) from None
        # Hashing is skipped only for a file already hashed by this process and not written since.
        seen = (stat.st_size, stat.st_mtime_ns, entry.sha256)
        if self._verified.get(path) == seen:
            return
        if stat.st_size != entry.bytes or sha256_file(path) != entry.sha256:
            raise damaged(path)
        self._verified[path] = seen


def _selected(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Those of the columns that a table has, in their order."""
    return table.select([name for name in columns if name in table.column_names])


def _rows(path: Path, key: str, values: pa.Array, columns: Sequence[str]) -> Generator[pa.Table]:
    """Rows of a Parquet file by the values of a column, row group by row group."""
    from gradus.data.arrays import pc  # noqa: PLC0415 - loads Arrow's functions

    with pq.ParquetFile(path, memory_map=True) as file:
        there = [name for name in file.schema_arrow.names if name in columns]
        for group in range(file.num_row_groups):
            found = pc.is_in(file.read_row_group(group, [key]).column(key), value_set=values)
            if pc.sum(found).as_py():
                yield file.read_row_group(group, there).filter(found)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what changes with a file; zeros if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
