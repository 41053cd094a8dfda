"""Measurements of tables in memory: written to files, counted from there."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.curation.difficulty import Measurement, measure
from gradus.data.lake.memory_limit import MemoryLimit
from gradus.data.lake.tally import UNJUDGED, Tally


def measured(scores: pa.Table, rollouts: pa.Table | None = None) -> Measurement:
    """Return what the scores say of their problems."""
    return measured_of([scores], None if rollouts is None else [rollouts])[0]


def measured_of(
    scores: list[pa.Table],
    rollouts: list[pa.Table] | None = None,
    *,
    threads: int = 1,
    limit_bytes: int | None = None,
    row_group: int = 1_000_000,
) -> tuple[Measurement, list[str]]:
    """Return what the scores of several shards say, and the ids of those without a verdict."""
    with tempfile.TemporaryDirectory() as name, MemoryLimit(limit_bytes, Path(name)).database() as database:
        database.execute(f"set threads = {threads}")
        shards = [_written(Path(name), role, tables or [], row_group) for role, tables in
                  (("scores", scores), ("rollouts", rollouts))]  # fmt: skip
        tally = Tally(database, shards[0], None if rollouts is None else shards[1])
        found = measure(tally)
        return found, tally.rollout_ids(UNJUDGED, found.num_unjudged)


def _written(folder: Path, role: str, tables: list[pa.Table], row_group: int) -> list[Path]:
    paths = [folder / f"{role}-{at}.parquet" for at in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path, row_group_size=row_group)
    return paths
