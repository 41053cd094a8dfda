"""A store that reads a lake and writes elsewhere: for looking ahead without leaving a trace.

with overlay(lake) as store:
store.put("problems", rows)      # in the lake if it is there, otherwise in a folder that is removed at the end
"""

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path

from gradus.data.lake.manifest import FILE_NAME, FileEntry
from gradus.data.lake.store import Ref, ShardWriter, Store


class Overlay(Store):
    """A lake, with a folder of its own for every artifact that the lake does not have."""

    def __init__(self, lake: Path, scratch: Path) -> None:
        super().__init__(lake)
        self._scratch = scratch
        self._own: set[Ref] = set()

    def path(self, ref: Ref) -> Path:
        """The folder of an artifact: the lake's if it is finished there."""
        theirs = super().path(ref)
        is_theirs = ref not in self._own and (theirs / FILE_NAME).is_file()
        return theirs if is_theirs else self._scratch / ref.table / ref.digest

    @contextlib.contextmanager
    def missing(self, ref: Ref) -> Generator[ShardWriter | None]:
        """Return the writer of an artifact that neither the lake nor this store has whole."""
        if self.find(ref) is None:
            self._own.add(ref)
        with super().missing(ref) as writer:
            yield writer

    def writer(self, ref: Ref) -> ShardWriter:
        """Begin an artifact, which goes to the folder of this store."""
        self._own.add(ref)
        return _LinkingWriter(self.path(ref), ref)


class _LinkingWriter(ShardWriter):
    def copy_file(self, name: str, source: Path) -> FileEntry:
        """Link a file: a policy of many gigabytes is not copied only to look ahead."""
        final = self.folder / name
        final.unlink(missing_ok=True)
        final.symlink_to(source.resolve())
        return self._receive(name)


@contextlib.contextmanager
def overlay(lake: Path) -> Generator[Overlay]:
    """A store above a lake whose own folder is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="gradus-") as scratch:
        yield Overlay(lake, Path(scratch))
