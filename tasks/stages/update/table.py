"""The table of an update: what it did with each row, as a Parquet file of the checkpoint."""

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from gradus.data.arrays import one_array, pc
from gradus.data.lake.schema import OWN, UPDATES, cast_to_schema
from gradus.models.objectives.rows import Rows
from gradus.models.training.mismatch import row_differences
from gradus.models.training.steps.step import StepResult


def update_table(
    table: pa.Table,
    rows: Rows,
    results: Sequence[StepResult],
    trainer: tuple[Tensor, Tensor] | None,
    *,
    keep_logprobs: bool,
) -> bytes:
    """Return the file's bytes: of each row the last step that took it.

    `trainer` are rows by number and the policy's log-probs of their tokens before the update.
    """
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
    if trainer is not None:
        chosen, logp = trainer
        there = np.zeros(rows.num_rows, dtype=np.bool_)
        there[chosen.numpy()] = True
        differences = np.full(rows.num_rows, np.nan)
        differences[chosen.numpy()] = row_differences(rows.select(chosen), logp).numpy()
        columns["mismatch"] = pa.array(differences, mask=np.isnan(differences))
        if keep_logprobs:
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
