"""Advantages of single tokens from which answers of a group have the same tokens: KTAE, TEMPO."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.ragged import joint, offsets
from gradus.models.objectives.rows import Groups, Rows

_K1, _B = 2.0, 0.5
"""Constants of BM25's term frequency, as in KTAE's code."""
_RATIO_EPS = 1e-5
_NONE = 1e-12
"""Sum of weights that stands for 0: then no token has a value."""
_TIE = 1 + 1e-7
"""Probabilities of two tables that differ by rounding alone count as equal, as in SciPy's Fisher test."""


@component("advantage", paper="arXiv 2505.16826", needs=("reward", "group", "tokens"), per="token", compares_group=True)
def ktae(
    rows: Rows,
    *,
    fisher: Annotated[float, Ge(0.0)] = 1.0,
    gain: Annotated[float, Ge(0.0)] = 1.0,
    frequency: bool = True,
    scale: Annotated[float, Gt(0.0)] = 1.0,
    without: tuple[int, ...] = (),
    std_eps: Annotated[float, Ge(0.0)] = 1e-6,
) -> Tensor:
    """KTAE: A_t = A_i + v(token), v how strongly the token is associated with right answers of the group, (M,).

    v = scale (2 sigmoid(k) - 1), k = (fisher F + gain IG) x / (fisher + gain). Of a rollouts right and b wrong that
    have the token, c and d that do not: F = exp(-2 p) with p of Fisher's exact test, 0 if p = 1; IG = H(right) -
    H(right | token) in bits; x = asin sqrt(a / (a + c)) - asin sqrt(b / (b + d)), and with `frequency` tf_r / (tf_w +
    1e-5) - tf_w / (tf_r + 1e-5), tf BM25's with k1 = 2, b = 0.5, over all right and all wrong tokens. A_i is that of
    `grpo`. KTAE, arXiv 2505.16826, as in the authors' code (compute_key_tokens.py). Right is a reward above 0; v is 0
    in a group without right or without wrong answers, and for a row without a reward. Deviation: their end-of-text id
    is no default of `without`.

    Args:
        fisher: Weight of Fisher's test.
        gain: Weight of the information gain; with both 0 no token has a value.
        frequency: True if the direction also has the ratio of frequencies.
        scale: Largest |v|.
        without: Token ids whose v is 0, such as the end of a text.
        std_eps: Added to the std.
    """
    known = ~rows["reward"].isnan()
    counted = rows.mask & known[rows.row]
    tokens, row = rows["tokens"][counted], rows.row[counted]
    right, groups = rows["reward"] > 0, rows.by("group")
    keys, number = torch.unique(joint(groups.of[row], tokens), return_inverse=True)
    group, token = (torch.zeros_like(keys).scatter_(0, number, each) for each in (groups.of[row], tokens))
    totals = _counts(groups.of[known], right[known], groups.num)[:, group]
    once = torch.unique(number * rows.num_rows + row)
    having = _counts(once // max(1, rows.num_rows), right[once % max(1, rows.num_rows)], len(keys))
    table = torch.cat([having, totals - having])
    direction = _share_angle(table[0], table[2]) - _share_angle(table[1], table[3])
    if frequency:
        length = _counts(groups.of[row], right[row], groups.num)[:, group]
        ahead, behind = _term_frequency(_counts(number, right[row], len(keys)), length)
        direction = direction + ahead / (behind + _RATIO_EPS) - behind / (ahead + _RATIO_EPS)
    p = _fisher_p(table)
    strength = fisher * torch.where(p * _TIE < 1, (-2 * p).exp(), 0.0) + gain * _information_gain(table)
    value = scale * (2 * torch.sigmoid(strength * direction / max(fisher + gain, _NONE)) - 1)
    named = torch.isin(token, torch.tensor(without, dtype=torch.int64))
    value = torch.where((totals > 0).all(0) & ~named, value, 0.0)
    found = grpo(rows, std_eps=std_eps)[rows.row]
    found[counted] += value[number]
    return found


@component("advantage", paper="arXiv 2509.18314", needs=("reward", "group", "tokens"), per="token", compares_group=True)
def tempo(rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-6) -> Tensor:
    """TEMPO: A_t = [r_i - mean(r) + V(s_t+1) - V(s_t)] / (std(r) + std_eps), V of a group's prefix tree, (M,).

    V(s) is the mean reward of the answers of the group that begin with s; the difference is 0 wherever they do not
    part. Exploiting Tree Structure for Credit Assignment, arXiv 2509.18314, as in the authors' code (core_algos.py).
    Rows without a reward, and groups of equal rewards: see `grpo`.

    Args:
        std_eps: Added to the std.
    """
    reward, groups = rows["reward"], rows.by("group")
    gain, first = torch.zeros(len(rows.row), dtype=torch.float64), offsets(rows.lengths)[:-1]
    prefix, value = groups.of.clone(), groups.mean(reward)
    place, open_ = 0, (rows.lengths > 0).nonzero()[:, 0]
    while len(open_):
        at = first[open_] + place
        branch = torch.unique(joint(prefix[open_], rows["tokens"][at]), return_inverse=True)[1]
        mean = Groups(branch).mean(reward[open_])
        gain[at] = mean - value[open_]
        prefix[open_], value[open_] = branch, mean
        place += 1
        # From where an answer is alone its value is its reward.
        open_ = open_[(torch.bincount(branch)[branch] > 1) & (rows.lengths[open_] > place)]
    std = groups.std(reward, ddof=1) + std_eps
    taught = groups.varied(reward) & ~reward.isnan()
    found = ((reward - groups.mean(reward))[rows.row] + gain) / std[rows.row]
    return torch.where(taught[rows.row], found, 0.0)


def _counts(of: Tensor, right: Tensor, num: int) -> Tensor:
    """The numbers of right and of wrong entries of each of `num` classes, (2, num) float64."""
    found = torch.zeros(2, num, dtype=torch.float64)
    for each, members in zip(found, (right, ~right), strict=True):
        each.index_add_(0, of, members.double())
    return found


def _share_angle(having: Tensor, without: Tensor) -> Tensor:
    return (having / (having + without).clamp_min(1)).sqrt().asin()


def _term_frequency(count: Tensor, length: Tensor) -> Tensor:
    """BM25's term frequency of the right tokens and of the wrong ones of a group as one text each, (2, K)."""
    share = count / length.clamp_min(1)
    norm = _K1 * (1 - _B + _B * length / (length.sum(0) / 2).clamp_min(1))
    return share * (_K1 + 1) / (share + norm)


def _information_gain(table: Tensor) -> Tensor:
    """H(right) - H(right | token), bits, of tables (4, K): right and wrong with the token, right and wrong without."""

    def entropy(ones: Tensor, others: Tensor) -> Tensor:
        share = torch.stack([ones, others]) / (ones + others).clamp_min(1)
        return torch.special.entr(share).sum(0) / torch.log(torch.tensor(2.0, dtype=torch.float64))

    a, b, c, d = table
    total = (a + b + c + d).clamp_min(1)
    return entropy(a + c, b + d) - (a + b) / total * entropy(a, b) - (c + d) / total * entropy(c, d)


def _fisher_p(table: Tensor) -> Tensor:
    """The two-sided p of Fisher's exact test of tables (4, K), (K,)."""
    keys, number = torch.unique(joint(*table.long()), return_inverse=True)  # few tables differ
    tables = torch.zeros(4, len(keys), dtype=torch.float64).scatter_(1, number.expand(4, -1), table)
    a, b, c, d = tables[:, :, None]
    drawn, right, total = a + b, a + c, a + b + c + d
    k = torch.arange(int(right.max()) + 1 if tables.shape[1] else 1, dtype=torch.float64)
    possible = (k >= drawn + right - total) & (k <= torch.minimum(drawn, right))
    inside = torch.where(possible, k, a)

    def log_choose(n: Tensor, k: Tensor) -> Tensor:
        return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)

    def probability(k: Tensor) -> Tensor:
        return (log_choose(right, k) + log_choose(total - right, drawn - k) - log_choose(total, drawn)).exp()

    found = torch.where(possible & (probability(inside) <= probability(a) * _TIE), probability(inside), 0.0)
    return found.sum(1).clamp_max(1.0)[number]
