"""Shapes that reward rows by grades, by what was measured of them, or by the parts of their reward one by one."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt

from gradus.components import component
from gradus.components.rows import Groups, Rows
from gradus.data.arrays import Floats
from gradus.data.curation.batch import BatchRows, ShapeError


@component("shape", paper="arXiv 2504.20157", needs=("reward", "judge: about", "judge: reward"))
def graded(rows: BatchRows, *, keep: bool = False) -> Mapping[str, Any]:
    """Reward each row by the mean of its judges' grades (MPO); one without any has no reward, and is left out.

    MPO (arXiv 2504.20157): the judge is the whole reward. Several judges are several waves `grade` with roles of their
    own; `disagreement` is the standard deviation of a row's grades, if it has two. With `keep` rules reward what they
    can judge, and judges the rest, as in Omni-Thinker (arXiv 2507.14783).

    Args:
        keep: True if a row that was not graded keeps its reward.
    """
    said = rows.others("judge")
    known = ~np.isnan(said["reward"]) & (said["about"][:, 0] >= 0)
    about, grades = said["about"][known, 0], said["reward"][known]
    total, count = np.bincount(about, grades, rows.num_rows), np.bincount(about, minlength=rows.num_rows)
    mean = np.divide(total, count, out=np.full(rows.num_rows, np.nan), where=count > 0)
    reward = np.where((count == 0) & keep, rows["reward"], mean)
    square = np.bincount(about, (grades - mean[about]) ** 2, rows.num_rows)
    return {"reward": reward, "disagreement": np.where(count > 1, np.sqrt(square / np.maximum(count, 1)), np.nan)}


@component(
    "shape", paper="arXiv 2511.12344", needs=("reward", "judge: about", "judge: reward", "judge: plan.item_weight")
)
def rubric_items(rows: BatchRows, *, scale: Annotated[float, Gt(0.0)] | None = None) -> Mapping[str, Any]:
    """Reward each row by the weighted share of the items of its rubric that it meets (RGR-GRPO).

    RGR-GRPO (arXiv 2511.12344): r = sum_k w_k s_k / sum_k w_k over the items with a verdict (the wave `rubric_guided`).
    A row without any has no reward, and is left out. With `scale` it is R + scale r, R the row's reward so far, as in
    AutoRule (arXiv 2506.15651).

    Args:
        scale: Weight of the share that is added to the reward; none has it take the place of the reward.
    """
    said = rows.others("judge")
    known = ~np.isnan(said["reward"]) & (said["about"][:, 0] >= 0)
    about, met, weight = said["about"][known, 0], said["reward"][known], said["plan.item_weight"][known]
    total, most = (np.bincount(about, each, rows.num_rows) for each in (met * weight, weight))
    share = np.divide(total, most, out=np.full(rows.num_rows, np.nan), where=most > 0)
    return {"reward": share if scale is None else rows["reward"] + scale * share}


@component("shape", needs=())
def measured(rows: Rows, *, column: str = "reward_model.value") -> Mapping[str, Any]:
    """Reward each row by a column of numbers; a row without one has no reward, and is left out.

    Args:
        column: Column to learn from, such as that of a measure or a tracker (NAME.COLUMN), or parts.NAME.
    """
    return {"reward": rows[column]}


@component("shape", paper="arXiv 2601.05242", needs=("group", "reward", "components"))
def gdpo(
    rows: Rows,
    *,
    weights: tuple[float, ...] = (),
    std_eps: Annotated[float, Ge(0.0)] = 1e-6,
) -> Mapping[str, Any]:
    """Reward each row by the sum of its rewards, each normalised in its group, and the sum over the batch (GDPO).

    GDPO (arXiv 2601.05242): S = sum_k w_k (r_k - mean(r_k)) / (std(r_k) + std_eps) within the group, then
    (S - mean(S)) / (std(S) + std_eps) over all rows, std with ddof 1; the advantage is `reward`. So a reward of small
    variance is not drowned by another. Rows without a reward count nowhere, and equal values of a group add 0.
    Deviation: the batch is counted by rows, as in the authors' TRL, not by tokens as in verl.

    Args:
        weights: Weight w of each reward of the recipe, in their order; () for 1 of each.
        std_eps: Added to each std.
    """
    known, by = ~np.isnan(rows["reward"]), rows.by("group")
    parts, names = _parts(rows, weights)
    total = np.zeros(rows.num_rows)
    for name, weight in zip(names, weights or [1.0] * len(names), strict=True):
        value = np.array([each.get(name) for each in parts], dtype=np.float64)
        value[~known] = np.nan
        total += weight * np.nan_to_num(_standardised(value, by, std_eps))
    total[~known] = np.nan
    return {"reward": _standardised(total, Groups(np.zeros(rows.num_rows, dtype=np.int64)), std_eps)}


@component("shape", paper="PaCo-RL", needs=("reward", "components"))
def log_sum(
    rows: Rows, *, weights: tuple[float, ...] = (), above: Annotated[float, Ge(0.0)] | None = None
) -> Mapping[str, Any]:
    """Reward each row by the sum of its rewards, those that fluctuate most by their logarithms (PaCo-RL).

    "PaCo-RL: Advancing Reinforcement Learning for Consistent Image Generation with Pairwise Reward Modeling":
    R = sum_k w_k f_k(r_k), f_k(r) = log(1 + r) if h_k > delta, else r, with h_k = std(r_k) / |mean(r_k)| over all rows
    (ddof 0). So none outweighs the others. A reward that has a logarithm must be above -1; a row that lacks a reward
    has none.

    Args:
        weights: Weight w of each reward of the recipe, in their order; () for 1 of each.
        above: The threshold delta; by default the mean of h over the rewards.
    """
    parts, names = _parts(rows, weights)
    values = np.array([[each.get(name, np.nan) for name in names] for each in parts], dtype=np.float64)
    known = values[~np.isnan(values).any(axis=1)]
    if not len(known):
        return {"reward": np.full(rows.num_rows, np.nan)}
    mean, std = np.abs(known.mean(axis=0)), known.std(axis=0)
    spread = np.divide(std, mean, out=np.where(std > 0, np.inf, 0.0), where=mean > 0)
    tamed = spread > (spread.mean() if above is None else above)
    if (values[:, tamed] <= -1).any():
        low = np.nanmin(values[:, tamed])
        raise ShapeError(f"a reward of {low:g} has no logarithm of 1 + r: rewards must be above -1")
    found = values.copy()
    found[:, tamed] = np.log1p(values[:, tamed])
    total = (found * (weights or [1.0] * len(names))).sum(axis=1)
    return {"reward": np.where(np.isnan(rows["reward"]), np.nan, total)}


@component("shape", paper="arXiv 2508.05170", needs=("reward", "correct", "components"))
def posterior(rows: Rows, *, part: str = "format", scale: float = 1.0) -> Mapping[str, Any]:
    """Add a part of the reward to right rows alone: R = r + 1[right] scale r_part (Posterior-GRPO).

    P-GRPO (arXiv 2508.05170): a reward of the reasoning counts only where the outcome passes. In the recipe the part
    has the weight 0, so that r has the others. Deviation: the part is any reward of the recipe, where the paper trains
    a model of one.

    Args:
        part: Name of the reward.
        scale: Its weight in the sum.
    """
    value = _part(rows, part)
    return {"reward": rows["reward"] + np.where(rows["correct"] == 1, scale * value, 0.0)}


@component("shape", paper="arXiv 2505.17018", needs=("group", "reward", "correct", "components"))
def trusted(rows: Rows, *, part: str = "format", scale: Annotated[float, Ge(0.0)] = 0.3) -> Mapping[str, Any]:
    """Add a part of the reward as far as it is higher for right rows: R = r + g scale r_part (Trust-GRPO).

    SophiaVL-R1 (arXiv 2505.17018): g = min(1, exp(m_right - m_wrong)), m the means of the part over the right and the
    wrong rows of the group; 1 in a group without both. In the recipe the part has the weight 0, so that r has the
    others. Deviation: the paper's weight falls as exp(-step / T): a schedule of the recipe.

    Args:
        part: Name of the reward.
        scale: Its weight in the sum.
    """
    value, by, right = _part(rows, part), rows.by("group"), rows["correct"] == 1
    of_right, of_wrong = (np.where(which, value, np.nan) for which in (right, rows["correct"] == 0))
    both = (by.count(of_right) > 0) & (by.count(of_wrong) > 0)
    trust = np.where(both, np.exp(np.minimum(by.mean(of_right) - by.mean(of_wrong), 0.0)), 1.0)
    return {"reward": rows["reward"] + scale * trust * value, "trust": trust}


@component("shape", paper="arXiv 2508.12957", needs=("group", "reward", "components"))
def rescaled(rows: Rows, *, part: str = "format", scale: Annotated[float, Ge(0.0)] = 1.0) -> Mapping[str, Any]:
    """Add a part of the reward that is stretched from 0 to 1 within its group, so that near values differ (ARMed).

    ARMed (arXiv 2508.12957): R = r + scale (s - min s) / (max s - min s) of the group, 0 in a group of equal values. In
    the recipe the part has the weight 0, so that r has the others. The form is guessed; the paper says that a semantic
    reward is rescaled, since a model's scores of different answers are nearly equal.

    Args:
        part: Name of the reward.
        scale: Its weight in the sum.
    """
    value, by = _part(rows, part), rows.by("group")
    known = np.where(np.isnan(rows["reward"]), np.nan, value)
    least, most = -by.max(-known), by.max(known)
    spread = np.where(by.varied(known), most - least, 0.0)
    share = np.divide(value - least, spread, out=value * 0.0, where=spread > 0)
    return {"reward": rows["reward"] + scale * share, "spread": spread}


def _part(rows: Rows, name: str) -> Floats:
    """Return one reward of each row (N,), NaN if a row lacks it; raise ShapeError if all do."""
    parts, names = _parts(rows, ())
    if name not in names:
        raise ShapeError(f"the recipe has no reward {name}; it has {', '.join(names)}")
    return np.array([each.get(name, np.nan) for each in parts], dtype=np.float64)


def _parts(rows: Rows, weights: tuple[float, ...]) -> tuple[list[dict[str, float]], list[str]]:
    """Return the rewards of each row by name, and their names; raise ShapeError if the number of weights differs."""
    parts = [dict(each or ()) for each in rows["components"]]
    names = list(dict.fromkeys(name for each in parts for name in each))
    if weights and len(weights) != len(names):
        raise ShapeError(
            f"it has {len(weights)} weights, and the recipe the rewards {', '.join(names)}: give one for each, or none"
        )
    return parts, names


def _standardised(values: Floats, by: Groups, std_eps: float) -> Floats:
    """Values less their group's mean over its std (ddof 1), (N,); 0 in a group of equal values, NaN of NaN."""
    std = by.std(values)
    return np.where(std > 0, (values - by.mean(values)) / np.where(std > 0, std + std_eps, 1.0), values * 0.0)
