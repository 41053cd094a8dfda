"""Metrics of stages: unbiased pass@k, majority votes, groups without variance. All vectorised over problems."""

import numpy as np

from gradus.data.arrays import Bools, Floats, Ints


def pass_at_k(n: Ints, c: Ints, k: int) -> Floats:
    """Unbiased estimate of the chance that one of k samples is right, from c right ones among n, per problem (P,).

    1 - C(n-c, k) / C(n, k), Codex (arXiv 2107.03374), as the product of (n-c-j)/(n-j) over j < k: nothing overflows,
    and it is exactly 1 where fewer than k are wrong, since the product meets a factor of 0 before a negative one.
    Raise ValueError if k < 1, k > n or not 0 <= c <= n.
    """
    n, c = np.asarray(n, dtype=np.int64), np.asarray(c, dtype=np.int64)
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1, not {k}")
    if (n < k).any():
        raise ValueError(f"pass@{k} needs at least {k} samples a problem; one has {int(n.min())}")
    if ((c < 0) | (c > n)).any():
        raise ValueError("pass@k needs 0 <= correct <= samples")
    all_wrong = np.ones(n.shape)
    for j in range(k):
        all_wrong *= (n - c - j) / (n - j)
    return 1.0 - all_wrong


def majority_at_k(problem: Ints, sample: Ints, answer: Ints, correct: Bools, *, num_problems: int, k: int) -> Floats:
    """Chance that the most frequent answer among the first k samples is right, per problem (P,).

    All inputs are per completion (N,): problem 0..P-1, its place in the problem, a code of its answer (negative: none
    was read, the completion abstains), whether it is right. Right answers count as one answer however they are
    written; wrong ones are equal where their codes are. k = 0 takes all samples. Ties share: two answers on top, one
    of them right, count 0.5. A problem without a single vote counts 0. Self-consistency, arXiv 2203.11171.
    """
    order = np.lexsort((sample, problem))
    problem, answer, correct = problem[order], answer[order], correct[order]
    start = np.searchsorted(problem, np.arange(num_problems))
    votes = answer >= 0
    if k:
        votes &= np.arange(len(problem)) - start[problem] < k
    choice = np.where(correct, 0, answer + 1)[votes]
    num_choices = int(choice.max(initial=0)) + 1
    ballots, count = np.unique(problem[votes] * num_choices + choice, return_counts=True)
    owner, is_right = ballots // num_choices, ballots % num_choices == 0
    most = np.zeros(num_problems, dtype=np.int64)
    np.maximum.at(most, owner, count)
    on_top = count == most[owner]
    num_on_top = np.bincount(owner[on_top], minlength=num_problems)
    num_right = np.bincount(owner[on_top & is_right], minlength=num_problems)
    return num_right / np.maximum(num_on_top, 1)


def zero_std_groups(reward: Floats, group: Ints) -> Bools:
    """Return by group (G,) whether no two rewards of it differ; `reward` and `group` 0..G-1 are (N,), NaN: no reward.

    True too of a group with fewer than two rewards: like one of equal rewards, it has no group-relative advantage.
    Equal means exactly equal, so that rounding of a mean plays no part.
    """
    num_groups = int(group.max(initial=-1)) + 1
    least, most = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    judged = ~np.isnan(reward)
    np.minimum.at(least, group[judged], reward[judged])
    np.maximum.at(most, group[judged], reward[judged])
    return most <= least
