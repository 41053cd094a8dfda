"""Shapes that take whole groups, or what else could be learned in their place."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.batch import BatchRows, ShapeError
from gradus.data.curation.round import own_rows
from gradus.data.curation.trackers.banks import normalised_group_variance


@component("shape", paper="arXiv 2509.04419", needs=("origin", "group", "correct"))
def hpt(rows: Rows, *, solved: Annotated[int, Ge(0)] = 0) -> Mapping[str, Any]:
    """Learn from a group, or from its demonstrations if at most `solved` of its own rows are right (HPT).

    HPT (arXiv 2509.04419): P <= gate takes the demonstration under supervised fine-tuning, else the rollouts under the
    group's advantages; the terms `policy` and `demonstration` name both. A group without a demonstration is learned
    from as it is. Advantages are those of the policy's own rows alone, since the others are left out.

    Args:
        solved: Right rollouts of a group at most, for its demonstrations to take its place.
    """
    own = own_rows(rows)
    by = rows.by("group")
    num_right, num_given = (by.sum(each.astype(np.float64)) for each in (own & (rows["correct"] == 1), ~own))
    stuck = (num_right <= solved) & (num_given > 0)
    return {
        "taken": np.where(own, ~stuck, stuck),
        "reason": np.where(own, "its demonstration is learned in place of its group", "its group is learned"),
        "term": np.where(own, "policy", "demonstration"),
        "stuck_frac": np.where(own, stuck, np.nan),
    }


@component("shape", paper="arXiv 2504.03380", needs=("group", "correct", "origin"))
def band(
    rows: Rows,
    *,
    low: Annotated[float, Ge(0.0), Le(0.5)] = 0.25,
    high: Annotated[float, Ge(0.5), Le(1.0)] = 0.75,
) -> Mapping[str, Any]:
    """Learn from the groups whose pass rate lies in [low, high], both ends included (online difficulty filtering).

    Online Difficulty Filtering (arXiv 2504.03380): low <= p <= high of the policy's own judged rows of a group, and
    high = 1 - low in its balanced form; the wave `refill` with the same bounds fills the batch. A group without a
    verdict is kept: nothing is known of it.

    Args:
        low: Lowest pass rate that is learned from.
        high: Highest pass rate that is learned from.
    """
    verdict, by = np.where(own_rows(rows), rows["correct"], np.nan), rows.by("group")
    rate = np.where(by.count(verdict) > 0, by.mean(verdict), np.nan)
    taken = ~((rate < low) | (rate > high))
    return {
        "taken": taken,
        "reason": np.where(
            rate < low, f"its group's pass rate is below {low:g}", f"its group's pass rate is above {high:g}"
        ),
        "in_band_frac": taken,
    }


@component("shape", paper="arXiv 2504.10160", needs=("reward",))
def gated(
    rows: BatchRows, *, column: str = "parts.format", least: float = 1.0, otherwise: float = 0.0
) -> Mapping[str, Any]:
    """Keep the reward of rows whose gate is at least `least`: all others have the reward `otherwise` (MT-R1-Zero).

    MT-R1-Zero (arXiv 2504.10160): a metric counts only in the form that was asked for, R = S_form + S_metric, and
    S_form - 2 = -3 without the form. AutoTriton (arXiv 2507.05687): rules first, then execution, 0 without the rules;
    there the gate has the weight 0 in the recipe, so that the reward has the others. A row without a gate has no
    reward, and is left out. Deviation: AutoTriton's abstract says the order alone; programs are run whatever the rules.

    Args:
        column: Column of the gates, such as one reward (parts.NAME) or a measure's (NAME.COLUMN).
        least: Lowest gate that passes.
        otherwise: Reward of what does not pass.
    """
    gate = rows[column]
    if np.isnan(gate).all():
        raise ShapeError(f"no row has a number in {column}, the gate of its reward")
    passed = gate >= least
    return {
        "reward": np.where(np.isnan(gate), np.nan, np.where(passed, rows["reward"], otherwise)),
        "passed_frac": np.where(np.isnan(gate), np.nan, passed),
    }


@component("shape", paper="arXiv 2509.19803", needs=("group", "reward", "origin"))
def vcrl(rows: Rows, *, kappa: Annotated[float, Ge(0.0), Le(1.0)] = 0.3) -> Mapping[str, Any]:
    """Learn from the groups whose normalised variance is at least kappa (VCRL); a group without a reward is kept.

    VCRL (arXiv 2509.19803): p = k (G - k) / floor(G^2 / 4) of k right rows among G; the wave `vcrl` fills the batch.

    Args:
        kappa: Lowest normalised variance that is learned from, 0 to 1.
    """
    share = normalised_group_variance(rows)
    taken = ~(share < kappa)
    return {
        "taken": taken,
        "reason": f"its group's normalised variance is below {kappa:g}",
        "varied_frac": taken,
    }
