"""Stage shape: the rollouts of a round become the batch that its update learns from.

Roles: rollouts and scores of all waves and uses, and of rows that were given; the plans of the round, its problems and
the trackers as they were before it, all optional: an update by itself has none. The batch has the rows that may be
learned from; rows of other uses are seen by shapes alone.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gradus.components.rows import ColumnError
from gradus.data.arrays import bools, floats, positions
from gradus.data.curation.batch import REASON, Shape, ShapeError, first_batch, judged, shaped
from gradus.data.curation.by_use import of_use, seen_by
from gradus.data.curation.uses import LEARN
from gradus.data.errors import BadInputError
from gradus.data.seeds import derive_seed
from gradus.tasks.config.rounds import ShapingConfig
from gradus.tasks.identity.loading import load
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.round_rows import beside_tracked, round_rows

_NAMED = ("rollout_id", "use", "role", "origin")
_SHOWN = ("rollout_id", "problem_id", "reward", "weight", "term", "taken", REASON)


def run(ctx: StageContext, config: ShapingConfig) -> StageResult:
    """Write the batch; BadInputError for a row without a score, or an invalid result of a shape."""
    ctx.beat(0.0, "reading the round")
    learned = of_use(seen_by(ctx.table("rollouts", _NAMED), config.role), LEARN)
    refuse_unpaired(learned, ctx.table("scores", ["rollout_id"]))
    table, metrics = batch_of(ctx, config)
    ctx.out.write_table(table)
    taken, reward = bools(table.column("taken")), floats(table.column("reward"))
    ctx.beat(1.0, f"{int(taken.sum())} of {table.num_rows} rows taken")
    left_out = Counter(table.column(REASON).drop_null().to_pylist())
    order = np.argsort(taken, kind="stable")[:NUM_SAMPLES]  # those that are left out first
    shown = [name for name in _SHOWN if name in table.column_names]
    return StageResult(
        metrics={
            "batch/taken_frac": float(taken.mean()) if len(taken) else 0.0,
            **({"batch/reward_mean": float(reward[taken].mean())} if taken.any() else {}),
            **metrics,
        },
        summary={"rows": table.num_rows, "taken": int(taken.sum()), "left_out": dict(left_out.most_common())},
        samples=table.select(shown).take(pa.array(order)).to_pylist(),
    )


def batch_of(ctx: StageContext, config: ShapingConfig) -> tuple[pa.Table, Mapping[str, float]]:
    """Return the table `batch` of the rollouts of a stage, in their order, and the metrics of the shapes."""
    rows = beside_tracked(ctx, round_rows(ctx, config.reads, config.role)[0], config.tracked)
    batch = first_batch(rows.table, drop_replaced_groups=config.drop_replaced_groups, beside=rows.beside)
    at = "the objective"
    try:
        metrics = dict[str, float]()
        for chosen in config.shapes:
            at = f"shape {chosen.label}"
            rng = np.random.default_rng(derive_seed(ctx.seed, "shape", ctx.round, chosen.label))
            draws = "rng" in chosen.component.arguments
            shape = Shape(chosen.short, load(chosen), chosen.needs, rng if draws else None)
            batch, found = shaped(batch, [shape])
            metrics |= found
        return judged(batch, config.carried), metrics
    except ShapeError as error:
        raise BadInputError(f"{at}: {error}", hint="correct the function") from None
    except ColumnError as error:
        alone = "an update by itself has no problems, plans and trackers: give the --batch of a training"
        hint = "read another column" if ctx.inputs.get("problems") else alone
        raise BadInputError(f"{at}: {error}", hint=hint) from None


def refuse_unpaired(rollouts: pa.Table, scores: pa.Table) -> None:
    """Raise BadInputError naming the first rollout or score that is there twice, or rollout without a score."""
    for table, what in ((rollouts, "rollout"), (scores, "score of rollout")):
        twice = [name for name, count in Counter(table.column("rollout_id").to_pylist()).items() if count > 1]
        if twice:
            raise BadInputError(f"{what} {twice[0]} is given twice", hint="give each rollouts and scores table once")
    places = positions(rollouts.column("rollout_id"), scores.column("rollout_id"))
    if (places < 0).any():
        row = rollouts.column("rollout_id")[int(np.argmax(places < 0))].as_py()
        raise BadInputError(f"rollout {row} has no score", hint="run `gradus score` on these rollouts")
