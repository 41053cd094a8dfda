"""What an update reports of its rows and steps."""

from typing import Any

import numpy as np
import torch

from gradus.data.arrays import Bools
from gradus.models.objectives.batch import ScoredBatch
from gradus.models.training.rollouts import Rollouts
from gradus.tasks.stages.update.resume_state import StepMetrics
from gradus.tasks.stages.update.rows import ScoredRows

NUM_SAMPLES = 16


def uniform_groups(rows: ScoredRows, batch: ScoredBatch, zero_std: Bools) -> dict[str, Any]:
    """Groups, those without variance in their rewards, and a rollout of the first such group."""
    found: dict[str, Any] = {"groups": batch.num_groups, "zero_std_groups": int(zero_std.sum())}
    if found["zero_std_groups"]:
        found["first_zero_std"] = rows.texts("rollout_id")[int(np.argmax(zero_std[batch.group.numpy()]))]
    return found


def oldest(rows: ScoredRows) -> dict[str, Any]:
    """The largest age of a row, in updates, and the first row of that age."""
    ages = rows.texts("age")
    oldest = int(np.argmax(ages))
    return {"oldest_updates": int(ages[oldest]), "oldest": rows.texts("rollout_id")[oldest]}


def without_clock(steps: list[StepMetrics]) -> tuple[list[StepMetrics], list[StepMetrics]]:
    """The metrics of every step, those measured with a clock apart."""
    return (
        [{name: value for name, value in step.items() if not name.startswith("perf/")} for step in steps],
        [{name: value for name, value in step.items() if name.startswith("perf/")} for step in steps],
    )


def last_and_worst(steps: list[StepMetrics]) -> StepMetrics:
    """The last step's metrics; maxima over all steps."""
    return {name: max(s[name] for s in steps) if name.endswith("_max") else value for name, value in steps[-1].items()}


def rows_report(rows: ScoredRows, batch: ScoredBatch, zero_std: Bools) -> dict[str, float]:
    """Means, maxima and shares over the rows that an update learnt from."""
    not_right = torch.zeros(batch.num_groups, dtype=torch.float64)
    not_right.index_add_(0, batch.group, (batch.correct != 1).double())
    lengths = batch.length.double()
    return {
        "trained/reward_mean": float(batch.reward.mean()),
        "trained/reward_std": float(batch.reward.std(correction=0)),
        "trained/frac_zero_std_groups": float(zero_std.mean()),
        "trained/frac_all_right": float((not_right == 0).double().mean()),
        "trained/length_mean": float(lengths.mean()),
        "trained/length_max": float(lengths.max()),
        "trained/truncated_frac": float(np.mean([reason == "length" for reason in rows.texts("finish_reason")])),
        "data/age_mean": float(np.mean(rows.texts("age"))),
        "data/age_max": float(np.max(rows.texts("age"))),
        "trained/hint_level_mean": float(np.mean([level or 0 for level in rows.texts("hint_level")])),
    }


def extreme_samples(rows: ScoredRows, rollouts: Rollouts) -> list[dict[str, Any]]:
    """The rows that the update pulled hardest towards and away from."""
    order = torch.argsort(rollouts.advantage, stable=True).tolist()
    half = min(NUM_SAMPLES // 2, len(order) // 2)
    chosen = [*order[::-1][:half], *order[:half]]
    named = ["rollout_id", "problem_id", "hint_level", "reward", "correct", "completion"]
    table: list[dict[str, Any]] = rows.table.select(named).take(np.array(chosen, dtype=np.int64)).to_pylist()
    return [
        {**row, "advantage": float(rollouts.advantage[i]), "tokens": int(rollouts.completions.lengths[i])}
        for i, row in zip(chosen, table, strict=True)
    ]
