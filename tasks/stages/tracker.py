"""Stage tracker: what one function keeps of a round, for the rounds after it.

Roles: plans, rollouts and scores of the round; problems; before, the rows that it kept so far, trackers, those that it
reads of others, and difficulty, all three as of the round before and optional. Rows that it does not return stay as
they are.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Ints, floats
from gradus.data.curation.candidates import Candidates
from gradus.data.curation.round import Round, WaveError
from gradus.data.curation.tracked import Tracked, TrackerError, changed_rows, merged, named, unnamed
from gradus.data.errors import BadInputError
from gradus.data.lake.columns import kind_of
from gradus.tasks.config.rounds import TrackingConfig
from gradus.tasks.identity.loading import load
from gradus.tasks.runs.records import Metrics
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.curate import pool_of
from gradus.tasks.stages.round_rows import beside_tracked, round_rows


def run(ctx: StageContext, config: TrackingConfig) -> StageResult:
    """Ask the tracker, and write its rows; BadInputError for what it cannot keep."""
    ctx.beat(0.0, "reading the round")
    chosen, by = config.tracker, config.tracker.by
    name, columns = f"tracker {chosen.label}", chosen.component.columns
    rows, groups = round_rows(ctx, config.reads)
    needs = None if chosen.needs is None else (*chosen.needs, *by)
    pool = pool_of(ctx, config.reads["problems"], None)
    round_ = Round(
        beside_tracked(ctx, rows, config.tracked).reading(needs, name),
        beside_tracked(ctx, pool, config.tracked).reading(needs, name),
        ctx.round,
        wave=0,
        calls=0,
        groups=groups,
        hints=None,
        drawn=_refused,
    )
    known = changed_rows({each: [] for each in (*by, *columns)}, by, columns)  # none at first
    if ctx.inputs.get("before"):
        known = unnamed(ctx.store.read(ctx.one("before")), chosen.short).select([*by, *columns])
    ctx.beat(0.5, f"{rows.num_rows} rollouts, {known.num_rows} rows kept so far")
    try:
        changed = changed_rows(load(chosen)(Tracked(known, keys=by), round_), by, columns)
        table = merged(known, changed, by)
    except (TrackerError, WaveError) as error:
        raise BadInputError(f"{name}: {error}") from None
    kept = named(table, chosen.short, by)
    ctx.out.write_table(kept)
    ctx.beat(1.0, f"{changed.num_rows} of {table.num_rows} rows changed")
    return StageResult(
        metrics={
            "data/tracked_rows": float(table.num_rows),
            "data/tracked_changed": float(changed.num_rows),
            **_means(kept, config.means),
        },
        summary={"rows": table.num_rows, "changed": changed.num_rows},
        samples=table.slice(0, NUM_SAMPLES).to_pylist(),
    )


def _means(kept: pa.Table, columns: Sequence[str]) -> Metrics:
    """Return the mean of each column over the rows in which it is known; none if it is known in no row."""
    found: Metrics = {}
    for column in columns:
        values = kept.column(column)
        if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type) or pa.types.is_null(values.type)):
            raise BadInputError(
                f"the recipe follows the mean of {column}, and it holds {kind_of(values.type)}",
                hint="take a column of numbers",
            )
        known = floats(values)
        known = known[~np.isnan(known)]
        found |= {column: float(known.mean())} if len(known) else {}
    return found


def _refused(_pool: Candidates, _num: int) -> Ints:
    raise WaveError("it draws problems, which a wave or a sampler does")
