"""Shapes that reward rows by what a judge said of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradus.components import component
from gradus.data.curation.batch import BatchRows


@component("shape", paper="arXiv 2508.20751", needs=("judge: about", "judge: reward"))
def win_rate(rows: BatchRows) -> Mapping[str, Any]:
    """Reward each row by the share of its judged comparisons that it won (Pref-GRPO).

    Pref-GRPO (arXiv 2508.20751): r_i = sum_j 1[judge prefers i to j] / (G - 1). Rows of the use `judge` are about the
    answer shown first and the one shown second, and their reward is 1 for the first, 0 for the second (the wave
    `pairs`). A comparison without a verdict counts nowhere; a row without any has no reward, and is left out.
    """
    said = rows.others("judge")
    known = ~np.isnan(said["reward"]) & (said["about"] >= 0).all(axis=1)
    (first, second), won = said["about"][known].T, said["reward"][known]
    wins = np.bincount(first, won, rows.num_rows) + np.bincount(second, 1 - won, rows.num_rows)
    games = np.bincount(np.concatenate((first, second)), minlength=rows.num_rows)
    return {"reward": np.divide(wins, games, out=np.full(rows.num_rows, np.nan), where=games > 0)}
