"""Continuing a stage that was killed: the rollouts of its unfinished shard, and the count of what was lost.

Finished rollouts of the open shard are kept every few seconds by engines that cannot sample the same again; one that
repeats itself to the bit samples its open shard again. Prompts are rows of plans; one is kept if all its rollouts were
on disk, and lost if at the end not all of them are.

    account_of(plan, kept, there)  # {"prompts": {"planned": 736, "kept": 675, "again": 61, "lost": 0}, ...}
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.arrays import Column, Ints, ints, one_array, pc, positions
from gradus.data.errors import StageError
from gradus.data.files import replacing
from gradus.data.lake.schema import PLAN, ROLLOUTS
from gradus.tasks.runs.records import Account, counted

KEYS = ("rollout_id", "plan_id", "group_id")
"""The columns of rollouts that are counted."""


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


def account_of(plan: pa.Table, kept: pa.Table, there: pa.Table) -> Account:
    """Count a plan against the rollouts that were on disk when its stage continued, and those at its end.

    Raise StageError if one is lost: the others must not be learned from.
    """
    asked = ints(plan.column("n"))
    before, after = np.minimum(_num_of(plan, kept), asked), np.minimum(_num_of(plan, there), asked)
    if (after < asked).any():
        first = _named(PLAN.column(plan, "plan_id"), plan.column("group_id"))[int(np.argmax(after < asked))]
        raise StageError(
            f"{int((after < asked).sum())} of {len(asked)} prompts were lost when the run continued: "
            f"{int((asked - after).sum())} of {int(asked.sum())} rollouts are in no shard, the first of {first}",
            hint="delete the folder of that rollouts artifact and run the same command again",
        )
    whole = int((before == asked).sum())
    return {"prompts": counted(len(asked), whole), "rollouts": counted(int(asked.sum()), int(before.sum()))}


def _num_of(plan: pa.Table, rollouts: pa.Table) -> Ints:
    """Return the number of rollouts of each plan row, (P,); a repeated id counts once."""
    ids = rollouts.column("rollout_id")
    found = rollouts.take(pa.array(np.unique(positions(ids, ids))))
    of_plan = _named(PLAN.column(plan, "plan_id"), plan.column("group_id"))
    at = positions(_named(ROLLOUTS.column(found, "plan_id"), found.column("group_id")), of_plan)
    return np.bincount(at[at >= 0], minlength=plan.num_rows)


def _named(own: Column, group: Column) -> pa.Array:
    return one_array(pc.coalesce(own, group))
