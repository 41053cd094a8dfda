"""Draws without replacement: all in order, uniform, and in proportion to pass-rate variance with exploration."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.rows import Rows, numbered
from gradus.data.arrays import Floats, Ints
from gradus.data.curation.results import Draw


@component("sampler", name="all", needs=())
def in_order(candidates: Rows, num: int, rng: np.random.Generator) -> Draw:  # noqa: ARG001 - nothing is drawn
    """Take the first rows in order, as ranked; every weight is 1."""
    index = np.arange(min(num, candidates.num_rows))
    return Draw(index, np.ones(len(index)), np.zeros(len(index), dtype=np.bool_), in_order=True)


@component("sampler", needs=())
def uniform(candidates: Rows, num: int, rng: np.random.Generator) -> Draw:
    """Draw rows with equal probability; every weight is 1."""
    index = _weighted(np.ones(candidates.num_rows), num, rng)
    return Draw(index, np.ones(len(index)), np.zeros(len(index), dtype=np.bool_))


@component("sampler", paper="arXiv 2509.21268", needs=("variance",))
def variance(
    candidates: Rows,
    num: int,
    rng: np.random.Generator,
    *,
    explore_frac: Annotated[float, Ge(0.0), Le(1.0)] = 0.25,
) -> Draw:
    """Draw rows in proportion to p(1-p); a share of the draw goes uniformly to rows without variance or measurement.

    After MMR1's variance-aware sampling (arXiv 2509.21268): part of the batch weighted, part uniform for coverage.
    Deviations: without replacement, no text-diversity term, and the uniform part is drawn only from the rows that the
    weighted part can never reach. Where one part has too few rows, the other fills up; with explore_frac 0 the rows
    without variance are never drawn. Weights are 4p(1-p), and 1 for an explored row.

    Args:
        explore_frac: Share of the draw taken from problems never measured or without variance.
    """
    weight = np.nan_to_num(4 * candidates["variance"])
    reachable, unknown = np.flatnonzero(weight > 0), np.flatnonzero(weight == 0)
    num_unknown = min(len(unknown), round(num * explore_frac))
    num_reachable = min(len(reachable), num - num_unknown)
    if explore_frac > 0:
        num_unknown = min(len(unknown), num - num_reachable)
    first = reachable[_weighted(weight[reachable], num_reachable, rng)]
    second = unknown[_weighted(np.ones(len(unknown)), num_unknown, rng)]
    return Draw(
        index=np.concatenate((first, second)),
        weight=np.concatenate((weight[first], np.ones(len(second)))),
        explored=np.concatenate((np.zeros(len(first), dtype=np.bool_), np.ones(len(second), dtype=np.bool_))),
    )


@component("sampler", paper="arXiv 2509.21268", needs=("variance", "diversity.dissimilarity"))
def mmr1_vas(
    candidates: Rows,
    num: int,
    rng: np.random.Generator,
    *,
    frac: Annotated[float, Ge(0.0), Le(1.0)] = 0.5,
    alpha: Annotated[float, Ge(0.0)] = 0.8,
    beta: Annotated[float, Ge(0.0)] = 0.2,
) -> Draw:
    """Draw a share of the problems by how much their outcomes and texts vary, the rest uniformly (variance-aware).

    MMR1 (arXiv 2509.21268): `frac` of the batch in proportion to VPS = alpha p (1 - p) + beta TDS, the others with
    equal chances among those left; TDS is what the tracker `diversity` keeps, and what is not known is 0. Weights are
    VPS, and 1 for a problem drawn uniformly. If too few have a VPS above 0, more are drawn uniformly.
    Deviations: both parts are without replacement; scores change whenever a problem is sampled, not every T steps.

    Args:
        frac: Share of the draw that goes by the score (the paper's lambda).
        alpha: Weight of the variance of outcomes.
        beta: Weight of the dissimilarity of texts.
    """
    score = alpha * np.nan_to_num(candidates["variance"]) + beta * np.nan_to_num(candidates["diversity.dissimilarity"])
    positive = np.flatnonzero(score > 0)
    first = positive[_weighted(score[positive], round(frac * min(num, candidates.num_rows)), rng)]
    left = np.setdiff1d(np.arange(candidates.num_rows), first)
    second = left[_weighted(np.ones(len(left)), num - len(first), rng)]
    return Draw(
        index=np.concatenate((first, second)),
        weight=np.concatenate((score[first], np.ones(len(second)))),
        explored=np.repeat([False, True], [len(first), len(second)]),
    )


@component("sampler", needs=())
def stratified(candidates: Rows, num: int, rng: np.random.Generator, *, column: str = "domain") -> Draw:
    """Draw as many problems of each value of a column as of any other; every weight is 1.

    What a value has too few of goes to the others. Problems without a value are those of one more.

    Args:
        column: Column to go by, such as domain, source or problem.level.
    """
    value = numbered([[str(each) for each in candidates[column]]])
    order = rng.permutation(candidates.num_rows)
    turn = np.empty(len(order), dtype=np.int64)
    for each in np.unique(value):
        members = order[value[order] == each]
        turn[members] = np.arange(len(members))
    start = rng.permutation(int(value.max(initial=-1)) + 1)
    index = np.lexsort((start[value], turn))[:num]
    return Draw(index, np.ones(len(index)), np.zeros(len(index), dtype=np.bool_))


def _weighted(weight: Floats, num: int, rng: np.random.Generator) -> Ints:
    """Row indices in draw order, each next one drawn in proportion to its weight among those left.

    Every row waits an exponential time of rate `weight`; the first to ring are the draw (Efraimidis and Spirakis,
    Information Processing Letters 97, 2006, with exponential instead of uniform keys).
    """
    waiting = rng.standard_exponential(len(weight)) / weight
    if num >= len(waiting):
        return np.argsort(waiting, kind="stable")
    first = np.argpartition(waiting, num)[:num]
    return first[np.argsort(waiting[first], kind="stable")]
