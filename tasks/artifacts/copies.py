"""Artifacts written out of the lake, to a file or a folder; in a folder nothing is touched but what Gradus put there.

    export(store, ref, Path("out"))

A file that is there is replaced or removed only if it has the bytes that the manifest in the folder says, or those to
be written; everything is looked at before anything is changed. The manifest is written last, so that a copy that was
interrupted is finished by the same command.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.errors import BadInputError
from gradus.data.files import replace_file, replacing
from gradus.data.lake.manifest import FILE_NAME, Manifest, sha256_file
from gradus.data.lake.names import regular_file
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.tasks.artifacts.resolve import STATE
from gradus.tasks.preflight.checks import ANOTHER, manifest_of_copy


def export(store: Store, ref: Ref, out: Path) -> Path:
    """Copy an artifact out of the lake: to one .parquet or .jsonl file, or to a folder."""
    if ref.table == CHECKPOINTS or out.suffix not in (".parquet", ".jsonl"):
        copies = [_Copy.planned(out, store.path(ref), store.verify(ref))]
        if ref.table == CHECKPOINTS:
            copies.append(_copy_of_state(store, ref, out / STATE))
        for each in copies:
            each.make()
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    write_rows(store.read(ref), out)
    return out


def write_rows(rows: pa.Table, out: Path, *, nulls: bool = True) -> None:
    """Write a table to a .parquet file, or to one of JSON lines, which name what is null or leave it out."""
    with replacing(out) as temporary:
        if out.suffix == ".parquet":
            pq.write_table(rows, temporary, compression="zstd")
            return
        with temporary.open("w", encoding="utf-8") as file:
            for row in (row for batch in rows.to_batches(max_chunksize=1024) for row in batch.to_pylist()):
                kept = {name: value for name, value in row.items() if nulls or value is not None}
                file.write(json.dumps(kept, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class _Copy:
    """Steps of a copy into a folder: files of an earlier copy removed, those of the lake written, the manifest last."""

    out: Path
    source: Path
    manifest: Manifest | None
    """None removes an earlier copy, if there is one."""
    removed: tuple[Path, ...] = ()
    written: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @classmethod
    def planned(cls, out: Path, source: Path, manifest: Manifest | None) -> "_Copy":
        """Return the steps; BadInputError or CorruptArtifactError for a file that is not Gradus's."""
        before, wanted = (
            {entry.name: entry for entry in each.files} if each else {} for each in (manifest_of_copy(out), manifest)
        )
        removed: list[Path] = []
        written = {name: source / name for name in wanted}
        for name in sorted({*before, *wanted}):
            try:
                path = regular_file(out, name)
            except FileNotFoundError:
                continue
            sha256 = sha256_file(path)
            if sha256 not in {known[name].sha256 for known in (before, wanted) if name in known}:
                raise BadInputError(f"{path} exists already, and Gradus did not write it so", hint=ANOTHER)
            if name not in wanted:
                removed.append(path)
            elif sha256 == wanted[name].sha256:
                del written[name]
        return cls(out, source, manifest, tuple(removed), written)

    def make(self) -> None:
        """Do it."""
        for path in self.removed:
            path.unlink()
        if self.manifest is None:
            (self.out / FILE_NAME).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # none was there, or something of the user's is in it
                self.out.rmdir()
            return
        self.out.mkdir(parents=True, exist_ok=True)
        for name, source in self.written.items():
            final = self.out / name
            final.parent.mkdir(parents=True, exist_ok=True)
            with replacing(final) as temporary:
                shutil.copyfile(source, temporary)
        replace_file(self.out / FILE_NAME, self.manifest.to_bytes())


def _copy_of_state(store: Store, ref: Ref, out: Path) -> _Copy:
    """Return the copy of a checkpoint's train state, an empty one if that is not kept."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise BadInputError(f"{out} is no folder of Gradus's", hint=ANOTHER)
    state = state_ref(ref)
    return _Copy.planned(out, store.path(state), store.verify(state) if store.find(state) else None)
