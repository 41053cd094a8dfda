"""Shapes that reward rows by grades, or by what was measured of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.batch import BatchRows


@component("shape", paper="arXiv 2504.20157", needs=("judge: about", "judge: reward"))
def graded(rows: BatchRows) -> Mapping[str, Any]:
    """Reward each row by the mean of its judge's grades (MPO); one without any has no reward, and is left out.

    MPO (arXiv 2504.20157): the judge is the whole reward.
    """
    said = rows.others("judge")
    known = ~np.isnan(said["reward"]) & (said["about"][:, 0] >= 0)
    about, grades = said["about"][known, 0], said["reward"][known]
    total, count = np.bincount(about, grades, rows.num_rows), np.bincount(about, minlength=rows.num_rows)
    return {"reward": np.divide(total, count, out=np.full(rows.num_rows, np.nan), where=count > 0)}


@component("shape", paper="arXiv 2511.12344", needs=("judge: about", "judge: reward", "judge: plan.item_weight"))
def rubric_items(rows: BatchRows) -> Mapping[str, Any]:
    """Reward each row by the weighted share of the items of its rubric that it meets (RGR-GRPO).

    RGR-GRPO (arXiv 2511.12344): r = sum_k w_k s_k / sum_k w_k over the items with a verdict (the wave `rubric_guided`).
    A row without any has no reward, and is left out.
    """
    said = rows.others("judge")
    known = ~np.isnan(said["reward"]) & (said["about"][:, 0] >= 0)
    about, met, weight = said["about"][known, 0], said["reward"][known], said["plan.item_weight"][known]
    total, most = (np.bincount(about, each, rows.num_rows) for each in (met * weight, weight))
    return {"reward": np.divide(total, most, out=np.full(rows.num_rows, np.nan), where=most > 0)}


@component("shape", needs=())
def measured(rows: Rows, *, column: str = "reward_model.value") -> Mapping[str, Any]:
    """Reward each row by a column of numbers; a row without one has no reward, and is left out.

    Args:
        column: Column to learn from, such as that of a measure or a tracker (NAME.COLUMN), or parts.NAME.
    """
    return {"reward": rows[column]}
