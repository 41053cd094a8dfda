"""Stage difficulty: judged rollouts of one policy become, or are added to, a difficulty table.

Roles: scores; rollouts (optional: policy and hint level of each completion); difficulty (optional: the table so far).
Scores without a verdict are not part of n and k, their rewards are part of mean and variance. Too many of them breach
the gate; that no score has a verdict or a reward is a failure. If every rollout had help, the table stays as it was.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import floats, ints
from gradus.data.curation.difficulty import Measurement, add, measure
from gradus.data.errors import GateError
from gradus.data.lake.memory_limit import MemoryLimit
from gradus.data.lake.tally import UNJUDGED, Tally
from gradus.tasks.config.curation import DifficultyConfig
from gradus.tasks.config.settings import memory_bytes
from gradus.tasks.runs.records import Sample
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.score.rewards import NUM_NAMED, coverage


def run(ctx: StageContext, _config: DifficultyConfig) -> StageResult:
    """Measure and write the table; GateError if not one rollout has a verdict or a reward.

    Where every rollout had help, such as hints from the start, nothing is measured.
    """
    ctx.beat(0.0, "counting judged rollouts")
    measured, first_unjudged = _measured(ctx)
    helped = measured.num_hinted == measured.num_scores and measured.num_rewarded
    if not len(measured.n) and not helped:
        raise GateError(
            f"none of {measured.num_scores} scores says whether an unhinted rollout is correct or what its reward is "
            f"({measured.num_unjudged} without a verdict, {measured.num_hinted} hinted)",
            hint="score with a reward that judges correctness (math, numeric, exact) and look at the errors",
        )
    previous = ctx.table("difficulty") if ctx.inputs.get("difficulty") else None
    table = add(measured, previous, round_index=ctx.round)
    ctx.out.write_table(table)
    ctx.beat(1.0, f"{table.num_rows} problems, {len(measured.n)} measured now")
    summary = _summary(measured, table.num_rows, first_unjudged)
    found = {
        "data/pass_rate_mean": summary["pass_rate_mean"],
        "data/reward_variance_mean": summary["reward_variance_mean"],
        "data/fresh_frac": summary["measured"] / summary["rows"] if summary["rows"] else None,
    }
    metrics = {name: value for name, value in found.items() if value is not None}
    return StageResult({**metrics, **measured.help.metrics}, summary, _samples(table))


def _measured(ctx: StageContext) -> tuple[Measurement, list[str]]:
    """Return the measurement, and the ids of the first rollouts without a verdict."""
    scores, rollouts = (
        [path for ref in ctx.inputs.get(role, ()) for path in ctx.store.files(ref)] for role in ("scores", "rollouts")
    )
    with MemoryLimit(memory_bytes(), ctx.out.scratch).database() as database:
        tally = Tally(database, scores, rollouts or None)
        measured = measure(tally)
        return measured, tally.rollout_ids(UNJUDGED, NUM_NAMED) if measured.num_unjudged else []


def _summary(measured: Measurement, num_problems: int, first_unjudged: Sequence[str]) -> dict[str, Any]:
    """Return the summary; a mean over problems is null if no problem has the number."""
    n, k, grades = measured.n, measured.k, measured.grades
    judged, rewarded = n > 0, grades.n > 0
    return {
        "rows": num_problems,
        "measured": len(n),
        "correct": int(k.sum()),
        "hinted": measured.num_hinted,
        "all_wrong": int((judged & (k == 0)).sum()),
        "all_right": int((judged & (k == n)).sum()),
        "pass_rate_mean": float((k[judged] / n[judged]).mean()) if judged.any() else None,
        "reward_mean": float(grades.mean[rewarded].mean()) if rewarded.any() else None,
        "reward_variance_mean": float(grades.variance[rewarded].mean()) if rewarded.any() else None,
        **coverage(
            measured.num_scores - measured.num_hinted, measured.num_unjudged, measured.num_failed, first_unjudged
        ),
    }


def _samples(table: pa.Table) -> list[Sample]:
    """The problems of the most variance, of verdicts before rewards: the ones that a curriculum looks for."""
    columns = ["problem_id", "n", "k", "pass_rate", "variance", "history", "reward_mean", "reward_variance"]
    variance, graded = (np.nan_to_num(floats(table.column(name)), nan=-1.0) for name in ("variance", "reward_variance"))
    most = np.lexsort((-ints(table.column("n")), -graded, -variance))[:NUM_SAMPLES]
    return table.select(columns).take(pa.array(most)).to_pylist()
