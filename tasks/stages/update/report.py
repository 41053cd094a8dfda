"""Report of an update on its rows and steps."""

from typing import Any

import numpy as np
import torch

from gradus.data.arrays import Bools
from gradus.models.objectives.rows import Rows
from gradus.tasks.stages.update.rows import Judged

NUM_SAMPLES = 16
StepMetrics = dict[str, float]


def uniform_groups(judged: Judged, rows: Rows, zero_std: Bools) -> dict[str, Any]:
    """Groups, those without variance in their rewards, and a rollout of the first such group."""
    found: dict[str, Any] = {"groups": len(zero_std), "zero_std_groups": int(zero_std.sum())}
    if found["zero_std_groups"]:
        found["first_zero_std"] = judged.texts("rollout_id")[int(np.argmax(zero_std[rows["group"].numpy()]))]
    return found


def oldest(judged: Judged) -> dict[str, Any]:
    """The largest age of a row, in updates, and the first row of that age."""
    ages = judged.texts("age")
    oldest = int(np.argmax(ages))
    return {"oldest_updates": int(ages[oldest]), "oldest": judged.texts("rollout_id")[oldest]}


def without_clock(steps: list[StepMetrics]) -> tuple[list[StepMetrics], list[StepMetrics]]:
    """The metrics of every step, those measured with a clock apart."""
    return (
        [{name: value for name, value in step.items() if not name.startswith("perf/")} for step in steps],
        [{name: value for name, value in step.items() if name.startswith("perf/")} for step in steps],
    )


def last_and_worst(steps: list[StepMetrics]) -> StepMetrics:
    """The last step's metrics; maxima over all steps."""
    return {name: max(s[name] for s in steps) if name.endswith("_max") else value for name, value in steps[-1].items()}


def rows_report(judged: Judged, rows: Rows, zero_std: Bools) -> dict[str, float]:
    """Means, maxima and shares over the rows that an update learnt from."""
    not_right = torch.zeros(len(zero_std), dtype=torch.float64)
    not_right.index_add_(0, rows["group"], (rows["correct"] != 1).double())
    lengths = rows["length"].double()
    return {
        "trained/reward_mean": float(rows["reward"].mean()),
        "trained/reward_std": float(rows["reward"].std(correction=0)),
        "trained/frac_zero_std_groups": float(zero_std.mean()),
        "trained/frac_all_right": float((not_right == 0).double().mean()),
        "trained/length_mean": float(lengths.mean()),
        "trained/length_max": float(lengths.max()),
        "trained/truncated_frac": float(np.mean([reason == "length" for reason in judged.texts("finish_reason")])),
        "data/age_mean": float(np.mean(judged.texts("age"))),
        "data/age_max": float(np.max(judged.texts("age"))),
        "trained/hint_level_mean": float(np.mean([level or 0 for level in judged.texts("hint_level")])),
    }


def extreme_samples(judged: Judged, rows: Rows) -> list[dict[str, Any]]:
    """The rows that the update pulled hardest towards and away from."""
    advantage = rows["advantage"] if len(rows["advantage"]) == rows.num_rows else rows.row_mean(rows["advantage"])
    order = torch.argsort(advantage, stable=True).tolist()
    half = min(NUM_SAMPLES // 2, len(order) // 2)
    chosen = [*order[::-1][:half], *order[:half]]
    named = ["rollout_id", "problem_id", "hint_level", "reward", "correct", "completion"]
    table: list[dict[str, Any]] = judged.table.select(named).take(np.array(chosen, dtype=np.int64)).to_pylist()
    return [
        {**row, "advantage": float(advantage[i]), "tokens": int(rows["length"][i])}
        for i, row in zip(chosen, table, strict=True)
    ]
