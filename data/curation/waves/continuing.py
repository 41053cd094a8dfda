"""Waves that continue rollouts of the round: after a phrase, from an uncertain token, or to value a beginning."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from gradus.components import component
from gradus.components.rows import Lists
from gradus.data.arrays import Floats, Ints
from gradus.data.curation.round import Planned, Round


@component("wave", paper="arXiv 2504.08837", needs=("finish_reason",))
def rethink(
    round: Round,
    rng: np.random.Generator,
    *,
    frac: Annotated[float, Gt(0.0), Le(1.0)] = 0.25,
    phrase: str = "Wait, let me check that again.",
) -> Planned | None:
    """Continue a share of the finished rollouts after a phrase; the longer row takes its parent's place (VL-Rethinker).

    Forced rethinking of VL-Rethinker (arXiv 2504.08837): the phrase stands in place of the end token, and the policy
    continues. The sampled tokens before and after it are trained, the phrase is not.
    Deviation: the authors draw one of several phrases by the kind of reflection; here it is one.

    Args:
        frac: Share of the rollouts that the policy ended itself.
        phrase: Line of text put in the place of their end token.
    """
    done = np.flatnonzero(round.rows["finish_reason"] == "stop")
    chosen = np.sort(rng.permutation(done)[: int(frac * len(done))])
    if not len(chosen):
        return None
    return round.plan(
        parent=chosen,
        branch_at=-1,
        inserted=f"\n{phrase}\n",
        inherits="trained",
        replaces=True,
        n=1,
        reason=f"{len(chosen)} of {len(done)} finished rollouts are rethought",
    )


@component("wave", paper="arXiv 2508.17445", needs=("group", "finish_reason", "logprobs"))
def branch(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 2,
    per_group: Annotated[int, Ge(1)] = 1,
    inherits: Literal["context", "trained"] = "trained",
) -> Planned | None:
    """Continue the least certain rollouts of each group from their least certain token, in the same group (TreePO).

    TreePO (arXiv 2508.17445) samples a group as a tree whose branches share their beginning. Here a second wave adds
    branches to complete rollouts: the token with the lowest log-prob of its sampler is sampled again, with all behind
    it. Deviations: branches begin at single tokens instead of at the ends of segments of fixed length, the depth is
    that of the waves, and the advantage is that of the group.

    Args:
        n: Branches of each chosen rollout.
        per_group: Rollouts of a group that are continued.
        inherits: Loss of the shared beginning in the branches: none, or as of any sampled token.
    """
    place, least = lowest(round.rows["logprobs"])
    return branched(
        round,
        place,
        least,
        per_group,
        inherits=inherits,
        n=n,
        reason=_improbable,
    )


@component("wave", paper="arXiv 2508.17445", needs=("group", "finish_reason", "token_entropy.tokens"))
def branch_entropy(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 2,
    per_group: Annotated[int, Ge(1)] = 1,
    inherits: Literal["context", "trained"] = "trained",
) -> Planned | None:
    """Continue rollouts of each group from their token of the highest entropy, in the same group (TreePO).

    As `branch` (TreePO, arXiv 2508.17445), by the entropies of a forced pass, the measure `token_entropy`: the
    probability of the sampled token alone does not measure them.

    Args:
        n: Branches of each chosen rollout.
        per_group: Rollouts of a group that are continued, those with the highest entropies.
        inherits: Loss of the shared beginning in the branches: none, or as of any sampled token.
    """
    entropies = round.rows["token_entropy.tokens"]
    place, least = lowest(Lists(-entropies.values, entropies.offsets))
    return branched(
        round,
        place,
        least,
        per_group,
        inherits=inherits,
        n=n,
        reason=lambda at, low: f"token {at} had an entropy of {-low:.3f} nats",
    )


@component("wave", paper="arXiv 2505.23564", needs=("group", "finish_reason", "logprobs"))
def values(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 4,
    below: Annotated[float, Gt(0.0), Lt(1.0)] = 0.9,
    every: Annotated[int, Ge(1)] = 5,
) -> Planned | None:
    """Sample continuations from the ends of segments of each rollout, whose mean reward is their value (SPO-chain).

    SPO-chain (arXiv 2505.23564): a cut point is a token whose probability under the sampler is below a threshold, a
    segment ends at every k-th of them, and V(s) is the mean reward of n continuations from s. The plan's column
    `boundary` numbers the cuts of a rollout from 0. The rows are of the use `value`, about their rollout, judged by
    `[score.value]`. The value of the prompt is the mean of the rollout's own group.

    Args:
        n: Continuations from each cut.
        below: Probability below which a token is a cut point.
        every: Cut points of a segment.
    """
    there, lists = round.rows["finish_reason"] != "error", round.rows["logprobs"]
    cuts = [cut_points(lists[row], below, every) if there[row] else np.zeros(0, np.int64) for row in range(len(lists))]
    parent = np.repeat(np.arange(len(cuts)), [len(each) for each in cuts])
    if not len(parent):
        return None
    return round.plan(
        parent=parent,
        branch_at=np.concatenate(cuts),
        inherits="context",
        use="value",
        about=parent,
        n=n,
        boundary=np.concatenate([np.arange(len(each)) for each in cuts]),
        reason=[f"value of a rollout's first {at} tokens" for at in np.concatenate(cuts)],
    )


def lowest(lists: Lists) -> tuple[Ints, Floats]:
    """Return place and log-prob of the least probable token of each list, (N,); 0 and inf for one without a number."""
    place, least = np.zeros(len(lists), np.int64), np.full(len(lists), np.inf)
    for row in range(len(lists)):
        found = np.where(np.isnan(lists[row]), np.inf, lists[row])
        if len(found):
            place[row] = np.argmin(found)
            least[row] = found[place[row]]
    return place, least


@component("wave", paper="arXiv 2509.26628", needs=("group", "correct", "finish_reason", "logprobs"))
def branch_hard(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 2,
    inherits: Literal["context", "trained"] = "trained",
) -> Planned | None:
    """Continue more rollouts of a group the fewer of it are right: ceil(G exp(-accuracy)) of its G (AttnRL).

    AttnRL (arXiv 2509.26628), difficulty-aware expansion; accuracy is the share of the group's judged rollouts that
    are right. The least certain ones are continued from their least certain token, in the same group, as `branch` does.
    Deviations: AttnRL branches at the steps that later ones attend to most, and gives nodes advantages of their own.

    Args:
        n: Branches of each chosen rollout.
        inherits: Loss of the shared beginning in the branches: none, or as of any sampled token.
    """
    place, least = lowest(round.rows["logprobs"])
    by, correct = round.rows.by("group"), round.rows["correct"]
    expanded = np.ceil(by.count(correct) * np.exp(-by.mean(correct)))
    return branched(
        round,
        place,
        least,
        expanded,
        inherits=inherits,
        n=n,
        reason=_improbable,
    )


def _improbable(at: int, logprob: float) -> str:
    """Return the reason of a branch from a token of a low log-prob."""
    return f"token {at} had probability {np.exp(logprob):.3f}"


def branched(
    round: Round,
    place: Ints,
    least: Floats,
    per_group: int | Floats,
    *,
    reason: Callable[[int, float], str],
    **columns: Any,
) -> Planned | None:
    """Plan branches from the places of the rows of each group with the smallest finite values; none of failed rows.

    `per_group` is the number of such rows, one for all groups or that of each row's group, (N,).
    """
    group, values = round.rows["group"], np.where(round.rows["finish_reason"] == "error", np.inf, least)
    chosen = np.flatnonzero(np.isfinite(values) & (round.rows.by("group").rank(values) < per_group))
    if not len(chosen):
        return None
    reasons = [reason(at, low) for at, low in zip(place[chosen], least[chosen], strict=True)]
    return round.plan(parent=chosen, group=group[chosen], branch_at=place[chosen], reason=reasons, **columns)


def cut_points(logprobs: Floats, below: float, every: int) -> Ints:
    """Return the places of every `every`-th token with a probability below `below`, the first token apart."""
    low = np.flatnonzero(np.nan_to_num(logprobs) < np.log(below))
    ends = low[every - 1 :: every]
    return ends[ends > 0]
