"""Stage difficulty: judged rollouts of one policy become, or are added to, a difficulty table.

Roles: scores; rollouts (optional: policy and hint level of each completion); difficulty (optional: the table so far).
Scores without a verdict count neither way; that none has one is a failure.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from data.arrays import floats, ints
from data.difficulty import add, measure
from data.errors import GateError
from tasks.config import DifficultyConfig
from tasks.context import StageContext, StageResult

_NUM_SAMPLES = 16


def run(ctx: StageContext, config: DifficultyConfig) -> StageResult:
    """Measure and write the table; GateError where not one rollout was judged."""
    ctx.beat(0.0, "counting judged rollouts")
    scores = ctx.table("scores", ["rollout_id", "problem_id", "correct"])
    rollouts = ctx.table("rollouts", ["rollout_id", "policy", "hint_level"]) if ctx.inputs.get("rollouts") else None
    previous = ctx.table("difficulty") if ctx.inputs.get("difficulty") else None
    measured = measure(scores, rollouts, unhinted_only=config.unhinted_only)
    if not len(measured.n):
        raise GateError(
            f"none of {scores.num_rows} scores says whether an unhinted rollout is correct "
            f"({measured.num_unjudged} without a verdict, {measured.num_hinted} hinted)",
            hint="score with a reward that judges correctness (math, numeric, exact) and look at the errors",
        )
    table = add(measured, previous, round_index=config.round)
    ctx.out.write_table(table)
    ctx.beat(1.0, f"{table.num_rows} problems, {len(measured.n)} measured now")
    rate = measured.k / measured.n
    summary: dict[str, Any] = {
        "rows": table.num_rows,
        "measured": len(measured.n),
        "judged": int(measured.n.sum()),
        "correct": int(measured.k.sum()),
        "unjudged": measured.num_unjudged,
        "hinted": measured.num_hinted,
        "all_wrong": int((measured.k == 0).sum()),
        "all_right": int((measured.k == measured.n).sum()),
        "pass_rate_mean": float(rate.mean()),
    }
    metrics = {"data/pass_rate_mean": float(rate.mean()), "data/fresh_frac": len(measured.n) / table.num_rows}
    return StageResult(metrics=metrics, summary=summary, samples=_samples(table))


def _samples(table: pa.Table) -> list[dict[str, Any]]:
    """The problems of the most variance: the ones that a curriculum looks for."""
    variance = np.nan_to_num(floats(table.column("variance")), nan=-1.0)
    most = np.lexsort((-ints(table.column("n")), -variance))[:_NUM_SAMPLES]
    return table.select(["problem_id", "n", "k", "pass_rate", "variance", "history"]).take(pa.array(most)).to_pylist()
