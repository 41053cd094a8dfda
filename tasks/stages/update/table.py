"""The table of an update: what it did with each row, as a Parquet file of the checkpoint."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from gradus.data.arrays import one_array, pc
from gradus.data.lake.schema import OWN, UPDATES, cast_to_schema
from gradus.models.training.mismatch import row_differences
from gradus.models.training.packed.logprobs import Logprobs
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.steps.step import RowResults
from gradus.models.training.tensor_files import Collect, SavedTensors, tensor_files
from gradus.tasks.stages.update.rows import ScoredRows

_STATE = "rows"
"""Stem of the file of resumable state."""


@dataclass
class RowTable:
    """What the steps taken so far did with the N rows of an update."""

    advantage: Tensor
    weight: Tensor
    zero_gradient: Tensor
    """(N,) bool."""
    taken: Tensor
    """(N,) bool: rows of any step."""

    @classmethod
    def of(cls, num_rows: int) -> Self:
        """Return the table before the first step."""
        numbers = torch.zeros(2, num_rows, dtype=torch.float64)
        flags = torch.zeros(2, num_rows, dtype=torch.bool)
        return cls(*numbers.unbind(), *flags.unbind())

    def add(self, results: RowResults) -> None:
        """Add the rows of a step; the last step of a row counts."""
        self.advantage[results.rows] = results.advantage
        self.weight[results.rows] = results.weight
        self.zero_gradient[results.rows] = results.zero_gradient
        self.taken[results.rows] = True

    def state_files(self) -> dict[str, Collect]:
        """Return the file of resumable state by name."""
        return tensor_files(_STATE, {name: getattr(self, name).clone() for name in self.__dataclass_fields__})

    def restore(self, files: Mapping[str, Path]) -> None:
        """Go back to saved state."""
        for name, value in SavedTensors.of(_STATE, files):
            setattr(self, name, value.clone())

    def parquet(self, rows: ScoredRows, rollouts: Rollouts, trainer: Logprobs | None, *, keep_logprobs: bool) -> bytes:
        """Return the file's bytes; `trainer` holds the policy's log-probs before the update."""
        taken, table = self.taken.numpy(), rows.table
        columns = {name: one_array(table.column(name)) for name in ("rollout_id", "problem_id", "reward")}
        columns["origin"] = one_array(pc.coalesce(table.column("origin"), OWN))
        for name in ("advantage", "weight", "zero_gradient"):
            columns[name] = pa.array(getattr(self, name).numpy(), mask=~taken)
        if trainer is not None:
            columns["mismatch"] = _mismatch(rollouts, trainer)
            if keep_logprobs:
                columns["logprobs"] = _lists(rollouts, trainer)
        found = io.BytesIO()
        pq.write_table(cast_to_schema(pa.table(columns), UPDATES), found, compression="zstd", write_page_checksum=True)
        return found.getvalue()


def _mismatch(rollouts: Rollouts, trainer: Logprobs) -> pa.Array:
    counted = torch.isfinite(trainer.truncated_logp - rollouts.logprobs[trainer.tokens])
    if rollouts.compared is not None:
        counted &= rollouts.compared[trainer.tokens]
    row = rollouts.completions.row[trainer.tokens][counted]
    there = torch.bincount(row, minlength=rollouts.num_rows) > 0
    return pa.array(row_differences(rollouts, trainer).numpy(), mask=~there.numpy())


def _lists(rollouts: Rollouts, trainer: Logprobs) -> pa.Array:
    """The log-probs of each row; null for a row that no step took."""
    values = np.full(len(rollouts.completions.values), np.nan, dtype=np.float32)
    values[trainer.tokens.numpy()] = trainer.logp.numpy()
    lists = pa.ListArray.from_arrays(pa.array(rollouts.completions.offsets.numpy(), pa.int32()), pa.array(values))
    there = np.zeros(rollouts.num_rows, dtype=np.bool_)
    there[rollouts.completions.row[trainer.tokens].numpy()] = True
    return pc.if_else(pa.array(there), lists, None)
