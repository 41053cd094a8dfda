"""Shapes of lengths: short completions where the policy can afford them, a budget, a limit, a target of the problem."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import scipy.special
from annotated_types import Ge, Gt, Le, Lt

from gradus.components import REGEX, component
from gradus.components.rows import Rows
from gradus.data.arrays import Floats
from gradus.data.curation.batch import ShapeError


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


@component("shape", paper="arXiv 2503.14476", needs=("length", "reward"))
def overlong(
    rows: Rows, *, limit: Annotated[int, Ge(1)] = 20_480, margin: Annotated[int, Ge(1)] = 4096
) -> Mapping[str, Any]:
    """Take up to 1 from the reward of completions that end within a margin of the limit (DAPO's soft punishment).

    DAPO (arXiv 2503.14476, eq. 13): R = r + clip((limit - margin - L) / margin, -1, 0) for L tokens.

    Args:
        limit: Tokens at which the whole of 1 is taken.
        margin: Tokens below it at which nothing is.
    """
    penalty = np.clip((limit - margin - rows["length"]) / margin, -1.0, 0.0)
    return {"reward": rows["reward"] + penalty, "penalised_frac": penalty < 0}


@component("shape", paper="arXiv 2502.03373", needs=("correct", "length", "reward"))
def cosine_length(
    rows: Rows,
    *,
    limit: Annotated[int, Ge(1)] = 16_384,
    right_short: float = 2.0,
    right_long: float = 1.0,
    wrong_short: float = -10.0,
    wrong_long: float = 0.0,
    exceeding: float = -10.0,
) -> Mapping[str, Any]:
    """Reward by a cosine of the length: right answers more if they are short, wrong ones if they are long.

    "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373): R = b + (a - b) (1 + cos(pi L / limit)) /
    2 for L tokens, from a at length 0 to b at the limit, and `exceeding` at the limit, which is where an answer was cut
    off. A row without a verdict has no reward.

    Args:
        limit: Most tokens of a completion.
        right_short: Reward of a right answer of length 0.
        right_long: Reward of a right answer at the limit.
        wrong_short: Reward of a wrong answer of length 0.
        wrong_long: Reward of a wrong answer at the limit.
        exceeding: Reward of an answer that reaches the limit.
    """
    right, length = rows["correct"] == 1, rows["length"]
    short, long = np.where(right, right_short, wrong_short), np.where(right, right_long, wrong_long)
    value = long + (short - long) * (1 + np.cos(np.pi * length / limit)) / 2
    value = np.where(length >= limit, exceeding, value)
    return {"reward": np.where(np.isnan(rows["correct"]), np.nan, value)}


@component("shape", paper="arXiv 2507.15844", needs=("correct", "length", "plan.budget"))
def hbpo(
    rows: Rows,
    *,
    limit: Annotated[int, Ge(1)] = 4096,
    scale: Annotated[float, Ge(0.0)] = 4.0,
    alpha: Annotated[float, Ge(0.0)] = 0.000244140625,
) -> Mapping[str, Any]:
    """Reward right answers by a cosine of their length that is anchored at the budget of their prompt (HBPO).

    HBPO (arXiv 2507.15844, eq. 1 to 3), for L tokens and the budget b of the wave `budgets`: R = scale cos(pi b / (2
    limit)) of a right answer with L <= b, scale cos(pi L / (2 limit)) - alpha |L - b| of one with b < L <= limit, else
    0. A row without a budget is left out, and one without a verdict has no reward.

    Args:
        limit: Most tokens of an answer that is rewarded, in which the cosine falls to 0.
        scale: Reward of a right answer as its budget goes to 0.
        alpha: What a token beyond the budget takes (1 / 4096).
    """
    length, budget = rows["length"], np.asarray(rows["plan.budget"], dtype=np.float64)
    beyond = np.maximum(0.0, length - budget)
    value = scale * np.cos(np.pi * np.maximum(length, budget) / (2 * limit)) - alpha * beyond
    value = np.where((rows["correct"] == 1) & (length <= limit), value, 0.0)
    return {
        "reward": np.where(np.isnan(rows["correct"]), np.nan, value),
        "taken": ~np.isnan(budget),
        "reason": "its prompt states no budget",
        "met_frac": np.where(np.isnan(budget), np.nan, beyond == 0),
    }


@component("shape", paper="arXiv 2508.08940", needs=("length", "reward"))
def length_budget(
    rows: Rows, *, budget: Annotated[float, Gt(0.0)] = 256.0, scale: Annotated[float, Ge(0.0)] = 0.5
) -> Mapping[str, Any]:
    """Add the most for a completion as long as the budget: R = r + scale max(0, 1 - |L - budget| / budget).

    "Train Long, Think Short: Curriculum Learning for Efficient Reasoning" (arXiv 2508.08940), where the budget falls
    during the training: a schedule of the recipe. The triangle is guessed, its peak is the paper's.

    Args:
        budget: Tokens that are rewarded most.
        scale: What they add.
    """
    return {"reward": rows["reward"] + scale * np.maximum(0.0, 1 - np.abs(rows["length"] - budget) / budget)}


@component("shape", paper="arXiv 2501.12599", needs=("group", "correct", "length", "reward"))
def shorter(rows: Rows, *, scale: Annotated[float, Ge(0.0)] = 1.0) -> Mapping[str, Any]:
    """Add up to a half to short right completions, and take as much from long ones, right or wrong (Kimi k1.5).

    Kimi k1.5 (arXiv 2501.12599): R = r + scale l for a right row and r + scale min(0, l) for another, with
    l = 1/2 - (L - min L) / (max L - min L) over the group; l is 0 in a group of one length.

    Args:
        scale: Weight of the length.
    """
    length, by = np.asarray(rows["length"], dtype=np.float64), rows.by("group")
    least, most = -by.max(-length), by.max(length)
    place = np.divide(length - least, most - least, out=np.full(rows.num_rows, 0.5), where=most > least)
    term = np.where(rows["correct"] == 1, 0.5 - place, np.minimum(0.0, 0.5 - place))
    return {"reward": rows["reward"] + scale * term, "length_term": term}


@component("shape", paper="arXiv 2505.19439", needs=("completion", "length"))
def format_length(
    rows: Rows,
    *,
    pattern: Annotated[str, REGEX] = r"\\boxed\{(?:(?!\\boxed\{)[^}])++\}",
    limit: Annotated[int, Ge(1)] = 3072,
    turn: Annotated[float, Gt(0.0), Lt(1.0)] = 0.5,
) -> Mapping[str, Any]:
    """Reward the format of a completion, and its length only where the format holds; no answer is read.

    "Surrogate Signals from Format and Length" (arXiv 2505.19439): R = 1 + l if the format holds, else min(0, l), with
    l = 1 - (1 - x / p)^2 for x <= p and 1 - 2 ((x - p) / (1 - p))^2 beyond, x = L / limit, at most 1. The reward of the
    recipe is not learned from. Deviation: the format is a regular expression, without a check of its mathematics.

    Args:
        pattern: Regular expression that is searched for in the whole completion.
        limit: Most tokens of a completion.
        turn: Share p of the limit from which on a longer completion is rewarded less.
    """
    form = re.compile(pattern, re.DOTALL)
    holds = np.array([form.search(text or "") is not None for text in rows["completion"]], dtype=np.bool_)
    share = np.minimum(1.0, rows["length"] / limit)
    below, above = 1 - (1 - share / turn) ** 2, 1 - 2 * ((share - turn) / (1 - turn)) ** 2
    term = np.where(share <= turn, below, above)
    return {"reward": np.where(holds, 1 + term, np.minimum(0.0, term)), "format_frac": holds}


@component("shape", paper="arXiv 2308.12030", needs=("length", "reward", "problem.length_target"))
def length_targets(
    rows: Rows,
    *,
    form: Literal["distance", "factor"] = "distance",
    scale: Annotated[float, Ge(0.0)] = 0.0003,
    offset: Annotated[float, Ge(0.0), Le(1.0)] = 0.5,
) -> Mapping[str, Any]:
    """Reward completions as long as their problem asks: equal, at most, at least, or between.

    "Prompt-Based Length Controlled Generation" (arXiv 2308.12030), `distance`: R = r - scale (max(0, L - max) +
    max(0, min - L)), which is r - scale |L - T| if both are T, as in L1-Exact (arXiv 2503.04697). L1-Max, `factor`:
    R = r clip(scale (max - L) + offset, 0, 1). The key `length_target` of a problem's `extra` is a table with `min`,
    `max` or both, in tokens; its question states them. A problem without one keeps r. Deviation: the first paper's
    reward is the distance alone.

    Args:
        form: `distance` takes from the reward, `factor` multiplies it.
        scale: Weight of a token.
        offset: The factor of a completion of exactly `max` tokens.
    """
    bounds = np.array([_bounds(each) for each in rows["problem.length_target"]]).reshape(-1, 2)
    length, reward = rows["length"], rows["reward"]
    over, under = np.maximum(0.0, length - bounds[:, 1]), np.maximum(0.0, bounds[:, 0] - length)
    met = (over == 0) & (under == 0)
    if form == "distance":
        return {"reward": reward - scale * (over + under), "met_frac": met}
    bounded = np.isfinite(bounds[:, 1])
    factor = np.clip(scale * (np.where(bounded, bounds[:, 1], length) - length) + offset, 0.0, 1.0)
    return {"reward": reward * np.where(bounded, factor, 1.0), "met_frac": met}


def _bounds(target: Any) -> tuple[float, float]:
    """Return the least and the most tokens that a target asks for; raise ShapeError unless it is one."""
    known = target if isinstance(target, dict) else {}
    least, most = known.get("min", 0), known.get("max", np.inf)
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (least, most))
    if (target is not None and not known) or {*known} - {"min", "max"} or not numbers or not 0 <= least <= most:
        raise ShapeError(f"a problem's length_target is {target!r}: a table with min, max or both, in tokens")
    return float(least), float(most)
