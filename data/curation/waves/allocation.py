"""Waves that spend more rollouts: on further problems, on groups that are still uncertain, at several token budgets."""

from typing import Annotated

import numpy as np
import pyarrow as pa
import scipy.special
from annotated_types import Ge, Gt, Le, Lt, MinLen

from gradus.components import component
from gradus.components.rows import Lists
from gradus.components.templates import Template, filled
from gradus.data.arrays import Floats, Ints
from gradus.data.curation.round import Planned, Round, first_rows, own_rows
from gradus.data.curation.tracked import places
from gradus.data.curation.waves.judged import questions

_BUDGETED = "{question}\n\nAnswer the question within {budget} tokens."


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


@component("wave", paper="arXiv 2509.25849", needs=("group", "problem_id", "history"))
def knapsack(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    mean: Annotated[float, Ge(1.0)] = 8.0,
    most: Annotated[int, Ge(1)] = 128,
) -> Planned | None:
    """Give each group as many rollouts as make the most of a budget, by its pass rate when last measured (Knapsack RL).

    Knapsack RL (arXiv 2509.25849): N_i maximise sum_i (1 - p_i^N_i - (1 - p_i)^N_i) p_i (1 - p_i)^2, the chance of a
    group with both outcomes times what its problem would gain, with sum_i N_i = mean G and low <= N_i <= most. The
    rollouts so far (`curate.sample.n`) are low, and the new ones join their group. What no problem of another pass
    rate can use goes evenly to those of 0 and 1, the unsolved first.
    Deviations: a problem that was never measured counts as one of pass rate 1/2; the last rule is a guess.

    Args:
        mean: Rollouts of a group on average, those so far among them.
        most: Largest number of rollouts of a group.
    """
    rows, pool = round.rows, round.candidates
    first = first_rows(rows, np.ones(rows.num_rows, dtype=np.bool_))
    size = np.bincount(rows["group"])[rows["group"][first]]
    at = places([rows.arrow("problem_id").take(pa.array(first))], [pool.arrow("problem_id")])
    rate = _last_rates(pool["history"])[at]
    more = best_counts(rate, size, np.maximum(size, most), int(mean * len(first))) - size
    chosen = more > 0
    return round.plan(
        like=first[chosen],
        group=rows["group"][first[chosen]],
        n=more[chosen],
        reason=[f"{count} more at pass rate {p:.3f}" for count, p in zip(more[chosen], rate[chosen], strict=True)],
    )


def best_counts(rate: Floats, low: Ints, high: Ints, budget: int) -> Ints:
    """Return the rollouts N of each problem (P,), low <= N <= high, that maximise the sum of `knapsack` exactly.

    Each further rollout of a problem adds less than the last, if low >= 1: so the largest additions of all are the best
    ones. The sum of N is `budget`, but within the sums of low and high.
    """
    problem = np.repeat(np.arange(len(rate)), high - low)
    before = np.concatenate([np.arange(*bounds) for bounds in zip(low, high, strict=True)] or [np.zeros(0, np.int64)])
    p = rate[problem]
    gain = (p**before * (1 - p) + (1 - p) ** before * p) * p * (1 - p) ** 2
    order = np.lexsort((p, before, -gain))[: max(0, budget - int(low.sum()))]
    return low + np.bincount(problem[order], minlength=len(rate))


@component("wave", paper="arXiv 2507.15844", needs=("group", "origin", "problem.question", "problem.messages"))
def budgets(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    tokens: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (512, 1024, 2048, 2560),
    n: Annotated[int, Ge(1)] = 4,
    template: Annotated[str, Template("question", "budget", needs=("question", "budget"))] = "",
) -> Planned | None:
    """Sample each problem with several token budgets in its prompt; the new rows join its group (HBPO).

    HBPO (arXiv 2507.15844): the rollouts of a problem are k subgroups of one budget b each. The plan's column `budget`
    has b, for the shape and the advantage `hbpo`; the rows are trained for the prompt that states it.
    Deviations: the budget stands behind the question, where the paper has it behind the opening tag of the thinking;
    the round's first rollouts, whose prompt states none, measure the problem's difficulty and are not learned from.

    Args:
        tokens: Budget of each subgroup.
        n: Rollouts of a subgroup.
        template: The prompt with {question} and {budget}; empty for ours.
    """
    rows, question = round.rows, questions(round.rows)
    first = first_rows(rows, own_rows(rows) & round.is_first)
    like, budget = np.repeat(first, len(set(tokens))), np.tile(np.array(sorted(set(tokens))), len(first))
    return round.plan(
        like=like,
        group=rows["group"][like],
        messages=[
            filled(template or _BUDGETED, question=question[row], budget=str(each))
            for row, each in zip(like, budget, strict=True)
        ],
        n=n,
        budget=budget,
        reason=[f"a budget of {each} tokens" for each in budget],
    )


def _last_rates(history: Lists) -> Floats:
    """Return the last number of each list (N,); 1/2 for an empty one."""
    known = np.diff(history.offsets) > 0
    found = np.full(len(history), 0.5)
    found[known] = history.values[history.offsets[1:][known] - 1]
    return found
