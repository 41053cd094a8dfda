"""Waves that spend more rollouts where they tell more: on further problems, or on groups that are still uncertain."""

from typing import Annotated

import numpy as np
import scipy.special
from annotated_types import Ge, Gt, Le, Lt

from gradus.components import component
from gradus.data.arrays import Floats, Ints
from gradus.data.curation.round import Planned, Round, first_rows


@component("wave", paper="arXiv 2503.14476", needs=("group", "correct"))
def refill(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - the recipe's sampler draws
    *,
    groups: Annotated[int, Ge(0)] = 0,
    low: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0,
    high: Annotated[float, Gt(0.0), Le(1.0)] = 1.0,
    most: Annotated[int, Ge(1)] = 1024,
) -> Planned | None:
    """Sample further problems until enough groups are neither all wrong nor all right (DAPO's dynamic sampling).

    DAPO (arXiv 2503.14476): 0 < correct < G of a group. With low and high the band of balanced online filtering (arXiv
    2504.03380), low <= pass rate <= high, all wrong and all right still excluded. As many problems are drawn as fill
    the batch at the share of such groups so far, by the recipe's filters, ranking and sampler.
    Deviation: groups outside the band stay in the batch, without advantage; `update.count_zero_std_groups = false`
    leaves them out of the denominators.

    Args:
        groups: Groups that are wanted; 0 for as many as the round began with.
        low: Lowest pass rate of a group that counts.
        high: Highest pass rate of a group that counts.
        most: Problems planned by one call at most.
    """
    rows, correct = round.rows, round.rows["correct"]
    first = first_rows(rows, np.ones(rows.num_rows, dtype=np.bool_))
    rate = rows.by("group").mean(correct)[first]
    informative = int(((rate > 0) & (rate < 1) & (rate >= low) & (rate <= high)).sum())
    wanted = groups or int(round.is_first[first].sum())
    missing = wanted - informative
    if missing <= 0:
        return None
    share = max(informative, 1) / len(first)
    drawn = round.draw(min(most, int(np.ceil(missing / share))))
    return round.plan(
        problems=drawn,
        reason=f"{informative} of {len(first)} groups are informative, {wanted} are wanted",
        skipped={} if len(drawn) else {"no problem is left to draw": 1},
    )


@component("wave", paper="arXiv 2510.06672", libraries=("scipy",), needs=("group", "reward"))
def xrpo(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    frac: Annotated[float, Gt(0.0)] = 0.5,
    alpha: Annotated[float, Gt(0.0), Lt(1.0)] = 0.05,
    explore: Annotated[float, Ge(0.0)] = 0.1,
) -> Planned | None:
    """Give more samples to the groups whose mean reward they would pin down most (XRPO).

    XRPO (arXiv 2510.06672): one after the other, each to the largest h(n) - h(n + 1) + explore sqrt(log(1 + N) / n),
    where h(n) = t_{1 - alpha/2, n - 1} s / sqrt(n) is the half-width of the confidence interval on a group's mean
    reward, s its sample standard deviation and N the number of all rollouts. The new rows join their group.
    Deviations: s is not estimated anew between the samples of one call; a group of one has half-width 0. The
    half-width is that of a public review of the paper.

    Args:
        frac: Samples of one call, as a share of the rollouts before it.
        alpha: One minus the confidence.
        explore: Weight of the bonus for groups with few samples.
    """
    rows, reward = round.rows, round.rows["reward"]
    by = rows.by("group")
    first = first_rows(rows, ~np.isnan(reward))
    if not len(first):
        return None
    size, spread = by.count(reward)[first], by.std(reward)[first]
    more = more_samples(size, spread, int(np.ceil(frac * rows.num_rows)), alpha, explore)
    chosen = more > 0
    return round.plan(
        like=first[chosen],
        group=rows["group"][first[chosen]],
        n=more[chosen],
        reason=[
            f"{count} more: reward std {std:.3f} of {int(n)}"
            for count, std, n in zip(more[chosen], spread[chosen], size[chosen], strict=True)
        ],
    )


def more_samples(size: Floats, spread: Floats, num: int, alpha: float, explore: float) -> Ints:
    """Return the number of `num` samples that each group is given, (G,); see `xrpo`."""
    counts = np.asarray(size, dtype=np.float64).copy()
    more = np.zeros(len(counts), dtype=np.int64)

    def half(n: Floats) -> Floats:
        width = scipy.special.stdtrit(np.maximum(n - 1, 1), 1 - alpha / 2) * spread / np.sqrt(n)
        return np.where(n > 1, width, 0.0)

    for _ in range(num):
        priority = half(counts) - half(counts + 1) + explore * np.sqrt(np.log1p(counts.sum()) / counts)
        chosen = int(np.argmax(priority))
        counts[chosen] += 1
        more[chosen] += 1
    return more
