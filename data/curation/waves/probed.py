"""Waves of probes: what the first answers say decides which problems are sampled, a greedy one is a baseline."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from gradus.components import component
from gradus.components.rows import Lists
from gradus.data.arrays import Floats, Ints, positions
from gradus.data.curation.round import Planned, Round, first_rows
from gradus.data.curation.tracked import places

_FITTED = 3
"""References by which a straight line is fitted at least."""


@component("wave", paper="mail-research/SELF-llm-interference", needs=("group", "correct"))
def unsolved(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 8,
    temperature: Annotated[float, Gt(0.0)] = 1.0,
) -> Planned | None:
    """Sample the problems of which no answer so far is right, in groups of their own (SELF).

    SELF (The Reasoning Boundary Paradox) decodes every problem of a batch greedily, and trains on those alone whose
    most likely answer is wrong. The probe is the round's first plan, one answer at temperature 0 (`curate.sample`),
    which the shape `without_probe` leaves out.

    Args:
        n: Rollouts of a problem.
        temperature: Their temperature.
    """
    rows = round.rows
    right = rows.by("group").sum(np.where(rows["correct"] == 1, 1.0, 0.0)) > 0
    judged = ~np.isnan(rows["correct"])
    failed = first_rows(rows, ~right & judged)
    return round.plan(like=failed, n=n, temperature=temperature, reason="its most likely answer is wrong")


@component("wave", needs=("group", "reward"))
def measure_again(
    round: Round,
    rng: np.random.Generator,
    *,
    limit: Annotated[float, Ge(0.0), Lt(1.0)] = 0.5,
    problems: Annotated[int, Ge(1)] = 256,
    n: Annotated[int, Ge(1)] = 4,
) -> Planned | None:
    """Measure other problems again in a round of which more than a share of the groups have rewards without variance.

    The problems are drawn at random among those that the round has not sampled, and the next round's filters, rankings
    and samplers read their new pass rates. The shape `without_measured` leaves these groups out of the update; without
    it they are learned from, too.

    Args:
        limit: Share of groups without variance above which problems are measured.
        problems: Problems measured in a round at most.
        n: Rollouts of a problem.
    """
    rows, pool = round.rows, round.candidates
    flat = len(first_rows(rows, ~rows.by("group").varied(rows["reward"])))
    num_groups = len(first_rows(rows, np.ones(rows.num_rows, dtype=np.bool_)))
    if flat <= limit * num_groups:
        return None
    known = positions(pool.table.column("problem_id"), rows.table.column("problem_id")) >= 0
    chosen = np.sort(rng.permutation(np.flatnonzero(~known))[:problems])
    return round.plan(
        problems=chosen, n=n, measured=True, reason=f"{flat} of {num_groups} groups have no variance: measured again"
    )


@component("wave", paper="arXiv 2310.10505", needs=("group",))
def greedy(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
) -> Planned | None:
    """Sample the most likely answer to each problem, once for each group, which it joins (ReMax).

    ReMax (arXiv 2310.10505): its reward is the baseline of the group. The rows have temperature 0 and the origin
    `greedy`, so that they count in no pass rate; the shape `remax` takes the baseline and leaves them out.
    """
    rows = round.rows
    first = first_rows(rows, np.ones(rows.num_rows, dtype=np.bool_))
    group = rows["group"][first]
    return round.plan(like=first, group=group, n=1, temperature=0.0, origin="greedy", reason="baseline of its group")


@component("wave", paper="arXiv 2506.05316", needs=("group", "correct", "problem_id", "embedding.vector"))
def dots(
    round: Round,
    rng: np.random.Generator,
    *,
    groups: Annotated[int, Ge(0)] = 0,
    target: Annotated[float, Ge(0.0), Le(1.0)] = 0.5,
    temperature: Annotated[float, Gt(0.0)] = 0.001,
    sharpness: Annotated[float, Gt(0.0)] = 10.0,
) -> Planned | None:
    """Sample the problems whose predicted pass rate is nearest to a target (DOTS).

    DOTS (arXiv 2506.05316): the round's first plan is a reference set; the pass rate of every other problem is
    predicted from it (`predicted`), and problems are drawn without replacement with probabilities in proportion to
    exp(-|p - target| / temperature). The shape `without_first` leaves the reference set out of what is learned.
    Deviations: a reference set each round instead of every second one; see `predicted`.

    Args:
        groups: Problems that are drawn; 0 for as many as the round began with.
        target: Pass rate that is wanted.
        temperature: Of the softmax; small takes the nearest alone.
        sharpness: Factor of the cosines in the attention.
    """
    rows, pool = round.rows, round.candidates
    judged = round.is_first & ~np.isnan(rows["correct"])
    first = first_rows(rows, judged)
    if not len(first):
        return None
    rate = rows.by("group").mean(np.where(judged, rows["correct"], np.nan))[first]
    known, of_rows = pool.arrow("problem_id"), rows.arrow("problem_id")
    reference = places([of_rows], [known])[first]
    found = predicted(vectors_of(pool["embedding.vector"]), reference, rate, sharpness)
    left = np.setdiff1d(np.arange(pool.num_rows), places([of_rows], [known]))
    waiting = np.abs(found[left] - target) / temperature - rng.gumbel(size=len(left))  # Gumbel top-k
    chosen = left[np.argsort(waiting, kind="stable")[: groups or len(first)]]
    return round.plan(problems=chosen, reason=[f"predicted pass rate {each:.3f}" for each in found[chosen]])


def predicted(vectors: Floats, reference: Ints, rate: Floats, sharpness: float) -> Floats:
    """Return the pass rate of each problem (P,), predicted from those of reference problems.

    DOTS (arXiv 2506.05316): p = sum_j w_j rate_j over the reference set, w a softmax of similarities, then a straight
    line that is fitted to the reference set. A problem without a vector has the mean rate.
    Deviations: similarities are the cosines of the vectors after their mean is taken off, times `sharpness`, where the
    authors train two projections on other runs; the line, whose slope is at least 0, is fitted to what each reference
    problem is predicted from the others, in place of a trained network and a line.

    Args:
        vectors: (P, D), NaN in those of problems that have none.
        reference: Numbers (R,) of the reference problems.
        rate: (R,) their pass rates.
        sharpness: Factor of the cosines in the attention.
    """
    there = np.all(np.isfinite(vectors), axis=1)
    own = there[reference]
    reference, rate, mean = reference[own], rate[own], float(rate.mean())
    if not len(rate):
        return np.full(len(vectors), mean)
    centred = np.where(there[:, None], vectors - vectors[there].mean(0), 0.0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    score = sharpness * (unit @ unit[reference].T)
    found = np.where(there, _attended(score, rate), mean)
    if len(rate) < _FITTED:
        return found
    others = score[reference]
    np.fill_diagonal(others, -np.inf)
    alone = _attended(others, rate)
    spread = float(alone.var())
    slope = max(0.0, float(((alone - alone.mean()) * (rate - rate.mean())).mean())) / spread if spread > 0 else 0.0
    return np.clip(rate.mean() + slope * (found - alone.mean()), 0.0, 1.0)


def _attended(score: Floats, rate: Floats) -> Floats:
    weight = np.exp(score - score.max(1, keepdims=True))
    return weight @ rate / weight.sum(1)


def vectors_of(lists: Lists) -> Floats:
    """Return N lists of one length as (N, D), NaN for an empty one."""
    lengths = np.diff(lists.offsets)
    found = np.full((len(lists), int(lengths.max(initial=0))), np.nan)
    found[lengths > 0] = lists.values.reshape(-1, found.shape[1]) if found.shape[1] else found[lengths > 0]
    return found
