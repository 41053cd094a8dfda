"""Report of an update on its rows and steps, and the table of its result for each row."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gradus.data.arrays import one_array, pc
from gradus.data.lake.schema import OWN, UPDATES, cast_to_schema
from gradus.models.objectives.rows import Rows
from gradus.models.training.learning_rows import row_differences
from gradus.tasks.stages.update.work import StepMetrics, Work

NUM_SAMPLES = 16


def oldest(work: Work) -> dict[str, Any]:
    """The largest age of a row, in updates, and the first row of that age; nothing without rows."""
    ages = work.values_of("age")
    if not ages:
        return {}
    oldest = int(np.argmax(ages))
    return {"oldest_updates": int(ages[oldest]), "oldest": work.values_of("rollout_id")[oldest]}


def without_clock(steps: list[StepMetrics]) -> tuple[list[StepMetrics], list[StepMetrics]]:
    """The metrics of every step, those measured with a clock apart."""
    return (
        [{name: value for name, value in step.items() if not name.startswith("perf/")} for step in steps],
        [{name: value for name, value in step.items() if name.startswith("perf/")} for step in steps],
    )


def last_and_worst(steps: list[StepMetrics]) -> StepMetrics:
    """The last step's metrics; maxima over all steps."""
    return {name: max(s[name] for s in steps) if name.endswith("_max") else value for name, value in steps[-1].items()}


def rows_report(work: Work) -> dict[str, float]:
    """Means, maxima and shares over the rows that an update learnt from; nothing without rows."""
    rows, zero_std = work.rows, work.zero_std
    if not rows.num_rows:
        return {}
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
        "trained/truncated_frac": float(np.mean([reason == "length" for reason in work.values_of("finish_reason")])),
        "data/age_mean": float(np.mean(work.values_of("age"))),
        "data/age_max": float(np.max(work.values_of("age"))),
        "trained/hint_level_mean": float(np.mean([level or 0 for level in work.values_of("hint_level")])),
    }


def extreme_samples(work: Work) -> list[dict[str, Any]]:
    """The rows that the update pulled hardest towards and away from."""
    rows = work.rows
    advantage = rows["advantage"] if len(rows["advantage"]) == rows.num_rows else rows.row_mean(rows["advantage"])
    order = torch.argsort(advantage, stable=True).tolist()
    half = min(NUM_SAMPLES // 2, len(order) // 2)
    chosen = [*order[::-1][:half], *order[:half]]
    named = ["rollout_id", "problem_id", "hint_level", "reward", "correct", "completion"]
    table: list[dict[str, Any]] = work.table.select(named).take(np.array(chosen, dtype=np.int64)).to_pylist()
    return [
        {**row, "advantage": float(advantage[i]), "tokens": int(rows["length"][i])}
        for i, row in zip(chosen, table, strict=True)
    ]


def update_table(work: Work) -> bytes:
    """Return the table of rows as a Parquet file, a file of the checkpoint: of each row the last step that took it."""
    table, rows, results = work.table, work.rows, work.results
    columns = {name: one_array(table.column(name)) for name in ("rollout_id", "problem_id", "reward")}
    columns["origin"] = one_array(pc.coalesce(table.column("origin"), OWN))
    untaken = np.ones(rows.num_rows, dtype=np.bool_)
    for result in results:
        untaken[result.rows.numpy()] = False
    for name, kind in (("advantage", np.float64), ("weight", np.float64), ("zero_gradient", np.bool_)):
        found = np.zeros(rows.num_rows, dtype=kind)
        for result in results:
            found[result.rows.numpy()] = getattr(result, name).numpy()
        columns[name] = pa.array(found, mask=untaken)
    if work.trainer is not None:
        chosen, logp = work.trainer
        there = np.zeros(rows.num_rows, dtype=np.bool_)
        there[chosen.numpy()] = True
        differences = np.full(rows.num_rows, np.nan)
        differences[chosen.numpy()] = row_differences(rows.select(chosen), logp).numpy()
        columns["mismatch"] = pa.array(differences, mask=np.isnan(differences))
        if work.config.keep_logprobs:
            columns["logprobs"] = _lists(rows, chosen, logp, there)
    file = io.BytesIO()
    pq.write_table(cast_to_schema(pa.table(columns), UPDATES), file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def _lists(rows: Rows, chosen: Tensor, logp: Tensor, there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """The log-probs of each row; null for a row that no step took."""
    values = np.full(len(rows.row), np.nan, dtype=np.float32)
    values[rows.places(chosen).numpy()] = logp.numpy()
    lists = pa.ListArray.from_arrays(pa.array(rows["completion"].offsets.numpy(), pa.int32()), pa.array(values))
    return pc.if_else(pa.array(there & (rows.lengths > 0).numpy()), lists, None)
