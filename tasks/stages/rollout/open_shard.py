"""Finished rollouts of the unfinished shard, kept every few seconds by engines that cannot sample the same again.

An engine that repeats itself to the bit does not need this: its open shard is sampled again. With others a crash loses
what finished since the last save, and the next attempt requests only the rest.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.files import replacing
from gradus.data.lake.schema import ROLLOUTS


class OpenShard:
    """The rows of one shard so far, in files of a folder that outlives the attempt; `folder` None keeps none."""

    def __init__(
        self, folder: Path | None, index: int, every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._stem = f"open-{index:05d}"
        self._every_s = every_s
        self._clock = clock
        self._last_s = clock()
        self._files = sorted(folder.glob(f"{self._stem}-*.parquet")) if folder is not None else []

    def rows(self) -> pa.Table:
        """Return the rows that earlier attempts kept; a file that cannot be read counts as never written."""
        found: list[pa.Table] = []
        for path in self._files:
            try:
                found.append(pq.read_table(path, page_checksum_verification=True))
            except (OSError, pa.ArrowException):
                path.unlink(missing_ok=True)
        return pa.concat_tables(found, promote_options="default") if found else ROLLOUTS.arrow.empty_table()

    @property
    def due(self) -> bool:
        """Return whether rows have waited for `every_s` seconds to be kept."""
        return self._folder is not None and self._clock() - self._last_s >= self._every_s

    def keep(self, rows: pa.Table) -> None:
        """Put rows on disk: whole under a name of their own, or not at all."""
        self._last_s = self._clock()
        if self._folder is None or not rows.num_rows:
            return
        number = 1 + max((int(path.stem.rpartition("-")[2]) for path in self._files), default=-1)
        path = self._folder / f"{self._stem}-{number:05d}.parquet"
        with replacing(path) as temporary:
            pq.write_table(rows, temporary, write_page_checksum=True)
        self._files.append(path)

    def close(self) -> None:
        """Delete the partial files once the shard is committed."""
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files.clear()
