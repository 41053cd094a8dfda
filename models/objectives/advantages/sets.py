"""Advantages of rows as members of sets: with a virtual best row, among k draws, by rank, in a stratum or a budget."""

import math
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import standardised
from gradus.models.objectives.rows import Rows


@component("advantage", paper="nangongrui-ngr/NGRPO", needs=("reward", "group"))
def ngrpo(rows: Rows, *, max_reward: float = 1.0, std_eps: Annotated[float, Ge(0.0)] = 1e-6) -> Tensor:
    """NGRPO: A_i = (r_i - mean) / (std + std_eps), with one more reward in each group, `max_reward`, (N,).

    NGRPO, advantage calibration: the added reward counts in mean and std alone. std with ddof 1. A group of G rewards
    of 0 gets -1 / sqrt(G + 1), one of `max_reward` alone gets 0. Deviation: a group of one is treated like others (the
    authors' code: its reward). 0 for rows without a reward.

    Args:
        max_reward: The largest reward possible.
        std_eps: Added to the std.
    """
    reward, groups = rows["reward"], rows.by("group")
    count = groups.count(reward)
    mean = (groups.sum(reward) + max_reward) / (count + 1)
    squares = groups.sum((reward - mean) ** 2) + (max_reward - mean) ** 2
    found = (reward - mean) / ((squares / count.clamp_min(1)).sqrt() + std_eps)
    return torch.where(groups.varied(reward) | (reward != max_reward), found, 0.0).nan_to_num(0.0)


@component("advantage", paper="arXiv 2508.10751", needs=("correct", "group"), compares_group=True)
def pass_at_k(rows: Rows, *, k: Annotated[int, Ge(1)] = 4) -> Tensor:
    """Pass@k training: the expected advantage of a row over all sets of k rows of its group, right if one row is, (N,).

    Pass@k Training, arXiv 2508.10751, analytical derivation: with N rows, of which W are wrong, m = 1 - C(W, k) / C(N,
    k) and s = sqrt(m (1 - m)), a right row has (1 - m) / s, a wrong one (1 - m - C(W - 1, k - 1) / C(N - 1, k - 1)) /
    s. 0 where fewer than k rows are wrong (every set is right), in groups without a right row or of fewer than k rows,
    and for rows of unknown correctness. With k = 1: GRPO with the population's std.

    Args:
        k: Rows of a set.
    """
    correct, groups = rows["correct"], rows.by("group")
    count = groups.count(correct)
    wrong = count - groups.sum(correct)
    fails, others_fail = _all_from(wrong, count, k), _all_from(wrong - 1, count - 1, k - 1)
    std = (fails * (1 - fails)).sqrt()
    found = (fails - torch.where(correct > 0, 0.0, others_fail)) / std
    return torch.where((std > 0) & ~correct.isnan(), found, 0.0)


@component("advantage", paper="arXiv 2505.15201", needs=("reward", "group"), compares_group=True)
def max_at_k(
    rows: Rows,
    *,
    k: Annotated[int, Ge(2)] = 4,
    divide: bool = False,
    std_eps: Annotated[float, Ge(0.0)] = 1e-6,
) -> Tensor:
    """max@k: A_i = mean of max r(S) - max r(S without i) over all sets S of k rows of the group that have row i, (N,).

    Pass@K Policy Optimization, arXiv 2505.15201, eq. 33 (s^(loo-1)) times n / k, for any rewards: pass@k if they are 0
    and 1. In groups of at most k rows S is the group: the best row has its lead over the second, the others 0, which,
    divided by the std, is arXiv 2503.19595 as in verl (grpo_passk). No A_i is below 0. 0 for rows without a reward.

    Args:
        k: Rows of a set.
        divide: True divides by the std (ddof 1) of the group's rewards.
        std_eps: Added to the std.
    """
    reward, groups = rows["reward"], rows.by("group")
    found = torch.zeros_like(reward)
    for number in range(groups.num):
        members = ((groups.of == number) & ~reward.isnan()).nonzero()[:, 0]
        value, order = reward[members].sort()
        others, drawn = len(members) - 1, min(k, len(members)) - 1
        if drawn < 1:
            continue
        # Of the sets with row i, the share in which the best of the others is the one at each place from the smallest.
        share = [math.comb(at, drawn - 1) / math.comb(others, drawn) for at in range(len(members))]
        found[members[order]] = (value[:, None] - value).clamp_min(0) @ torch.tensor(share, dtype=value.dtype)
    return found / (groups.std(reward) + std_eps) if divide else found


@component(
    "advantage",
    paper="AndreHe02/rewarding-unlikely-release",
    needs=("reward", "group", "sampler.logp"),
    when="step",
    compares_group=True,
)
def unlikeliness(
    rows: Rows, *, rank_coef: Annotated[float, Ge(0.0), Le(1.0)] = 0.25, std_eps: Annotated[float, Ge(0.0)] = 1e-6
) -> Tensor:
    """Unlikeliness reward: r'_i = r_i (1 - rank_coef rank_i / G); A_i = (r'_i - mean(r')) / (std(r') + std_eps), (N,).

    Rewarding the Unlikely. The rank in a group of G rows is the number of rows that were less likely to the sampler, by
    mean log-prob of a token, so that the likeliest loses most; equally likely rows share a rank. Only rewards above 0
    are scaled. std with ddof 1. A group of equal rewards r gets 0, as the authors drop it. 0 for rows without a reward.

    Args:
        rank_coef: Share of the reward that the likeliest row would lose at rank G.
        std_eps: Added to the std.
    """
    reward, groups = rows["reward"], rows.by("group")
    likely = torch.where(reward.isnan(), torch.nan, rows.row_mean(rows["sampler.logp"].double()))
    peers = groups.of[:, None] == groups.of
    rank = (peers & (likely[:, None] > likely)).sum(1)
    scale = 1 - rank_coef * rank / groups.count(reward).clamp_min(1)
    scaled = torch.where(reward > 0, reward * scale, reward)
    return torch.where(groups.varied(reward), standardised(scaled, groups, std_eps), 0.0)


@component("advantage", paper="Stratified GRPO", needs=("reward", "group", "marks.call"), compares_group=True)
def stratified(
    rows: Rows, *, alpha: Annotated[float, Ge(0.0), Le(1.0)] = 0.8, std_eps: Annotated[float, Ge(0.0)] = 1e-4
) -> Tensor:
    """SAN: A_i = alpha S_i + (1 - alpha) G_i; S is (r - mean) / (std + std_eps) in the stratum, G in the group, (N,).

    Stratified GRPO: a stratum has the rows of a group with equally many calls of tools, here marks `call` of a row
    (without any, a group is one stratum, and this is GRPO). std with ddof 1. The blend is the abstract's, the default
    of alpha a guess. 0 for rows without a reward; S is 0 in a stratum of equal rewards or of one row.

    Args:
        alpha: Weight of the comparison within the stratum.
        std_eps: Added to both stds.
    """
    reward, groups = rows["reward"], rows.by("group")
    calls = torch.bincount(rows.marks("call").row, minlength=rows.num_rows)
    strata = rows.adding({"calls": calls}).by("group", "calls")
    within, whole = standardised(reward, strata, std_eps), standardised(reward, groups, std_eps)
    return alpha * within + (1 - alpha) * whole


@component("advantage", paper="arXiv 2507.15844", needs=("reward", "group", "plan.budget"))
def hbpo(
    rows: Rows,
    *,
    limit: Annotated[int, Ge(1)] = 4096,
    scale: Annotated[float, Gt(0.0)] = 4.0,
    std_eps: Annotated[float, Ge(0.0)] = 1e-6,
) -> Tensor:
    """HBPO: A_i = (m_b - scale cos(pi b / (2 limit))) + (r_i - mean) / (std + std_eps), (N,).

    HBPO, arXiv 2507.15844, algorithm 1 and eq. 4 and 5: m_b is the mean reward of the rows of the group that have the
    budget b, less the reward of a right answer within b (limit and scale are those of the shape `hbpo`); mean and std
    (ddof 1) are those of the whole group. Deviation: the first part is added once, as in the paper, where the authors'
    code adds it twice. 0 for rows without a reward or a budget; a group of one has the first part alone.

    Args:
        limit: Length at which the cosine is 0, tokens.
        scale: Reward of a right answer as its budget goes to 0.
        std_eps: Added to the std.
    """
    reward, budget = rows["reward"], rows["plan.budget"].double()
    mean = rows.by("group", "plan.budget").mean(reward)
    within = mean - scale * (math.pi * budget / (2 * limit)).cos()
    found = within + standardised(reward, rows.by("group"), std_eps)
    return torch.where(reward.isnan(), 0.0, found).nan_to_num(0.0)


def _all_from(some: Tensor, count: Tensor, k: int) -> Tensor:
    """C(some, k) / C(count, k), (N,): the chance that k draws without replacement are all from `some` of `count`."""
    found = torch.ones_like(count)
    for drawn in range(k):
        found = found * (some - drawn).clamp_min(0) / (count - drawn).clamp_min(1)
    return found
