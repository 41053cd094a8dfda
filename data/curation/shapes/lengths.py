"""Shapes that reward short completions where the policy can afford them."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import scipy.special
from annotated_types import Ge, Gt, Le, Lt

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Floats


@component("shape", paper="arXiv 2505.18086", libraries=("scipy",), needs=("group", "correct", "length", "reward"))
def grpo_lambda(
    rows: Rows,
    *,
    top_frac: Annotated[float, Gt(0.0), Le(1.0)] = 0.2,
    alpha: Annotated[float, Ge(0.0), Lt(1.0)] = 0.5,
) -> Mapping[str, Any]:
    """Reward short right completions, in the groups of the highest pass rates alone (GRPO-lambda).

    GRPO-lambda (arXiv 2505.18086): the top share of the round's groups by the share of right rows is rewarded by
    length, all others by correctness. Deviations: the paper's factor is not known; it is r (1 - alpha sigmoid(z)) of a
    right row, where z is its length in standard deviations (ddof 1) from the mean of the group's right rows (arXiv
    2502.04463). Groups as solved as the last of the top ones are among them, unless none of their rows is right.

    Args:
        top_frac: Share of the groups that is rewarded by length.
        alpha: Share of its reward that a long completion loses.
    """
    by, right = rows.by("group"), rows["correct"] == 1
    rate = by.mean(rows["correct"])
    of_groups = np.sort(rate[np.unique(by.of, return_index=True)[1]])[::-1]
    limit = of_groups[: max(1, round(top_frac * len(of_groups)))].min(initial=1.0)
    short = right & (rate >= limit)
    length = np.where(right, rows["length"], np.nan)
    scale = shortness(length, by.mean(length), by.std(length))
    return {"reward": np.where(short, rows["reward"] * (1 - alpha * scale), rows["reward"]), "rewarded_frac": short}


def shortness(length: Floats, mean: Floats, std: Floats) -> Floats:
    """Return sigmoid((length - mean) / std), (N,); a half where the standard deviation is 0."""
    return scipy.special.expit(np.divide(length - mean, std, out=np.zeros_like(std), where=std > 0))
