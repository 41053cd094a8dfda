"""Advantages of rows as members of sets, by hand and by counting all sets."""

import math
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradus.components.rows import Marks
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.advantages.sets import max_at_k, ngrpo, pass_at_k, stratified, unlikeliness
from gradus.models.objectives.rows import Rows

NAN = math.nan
ALL = {f.__name__: f for f in (max_at_k, ngrpo, pass_at_k, stratified, unlikeliness)}


def batch(
    reward: list[float],
    group: list[int] | None = None,
    *,
    calls: list[int] | None = None,
    logp: list[list[float]] | None = None,
) -> Rows:
    num, logp = len(reward), logp or [[-1.0]] * len(reward)
    row = torch.repeat_interleave(torch.arange(num), torch.tensor(calls or [0] * num))
    none = torch.zeros(len(row), dtype=torch.int64)
    return Rows(
        {
            "reward": torch.tensor(reward, dtype=torch.float64),
            "correct": torch.tensor(reward, dtype=torch.float64),
            "group": torch.tensor(group or [0] * num),
        },
        {"sampler.logp": torch.tensor([value for each in logp for value in each], dtype=torch.float64)},
        torch.tensor([len(each) for each in logp]),
        marks={"marks.call": Marks(row, none, none, none.double(), np.array([None] * len(row)))},
    )


@pytest.mark.parametrize("size", [1, 4, 8])
def test_an_all_wrong_group_is_below_the_virtual_row_and_an_all_right_one_is_not(size: int) -> None:
    assert ngrpo(batch([0.0] * size), std_eps=0.0).tolist() == pytest.approx([-1 / math.sqrt(size + 1)] * size)
    assert ngrpo(batch([1.0] * size)).tolist() == [0.0] * size


def test_ngrpo_by_hand() -> None:
    # 1, 0, 0 and the virtual 1: mean 1/2, squares 1, std sqrt(1/3).
    root = math.sqrt(3) / 2
    assert ngrpo(batch([1, 0, 0]), std_eps=0.0).tolist() == pytest.approx([root, -root, -root])
    # Up to 3: 0, 1 and the virtual 3 have mean 4/3 and squares 14/3, std sqrt(7/3); all 1 are below it.
    other = ngrpo(batch([0, 1, 1], [0, 0, 1]), max_reward=3.0, std_eps=1.0).tolist()
    assert other[:2] == pytest.approx([-4 / 3 / (1 + math.sqrt(7 / 3)), -1 / 3 / (1 + math.sqrt(7 / 3))])
    assert other[2] == pytest.approx(-1 / (1 + math.sqrt(2)))


def by_counting(correct: list[float], k: int) -> list[float]:
    """The mean advantage of each row over all sets of k rows: right if one is, less their mean, over their std."""
    sets = list(combinations(range(len(correct)), k))
    reward = {each: max(correct[at] for at in each) for each in sets}
    mean = fmean(reward.values())
    std = math.sqrt(fmean((value - mean) ** 2 for value in reward.values()))
    if std == 0:
        return [0.0] * len(correct)
    return [fmean((reward[each] - mean) / std for each in sets if at in each) for at in range(len(correct))]


@given(correct=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), k=st.integers(1, 5))
@settings(max_examples=60)
def test_pass_at_k_is_the_mean_over_all_sets(correct: list[float], k: int) -> None:
    wanted = by_counting(correct, k) if k <= len(correct) else [0.0] * len(correct)
    found = pass_at_k(batch(correct), k=k).tolist()
    assert found == pytest.approx(wanted, abs=1e-9)
    assert sum(found) == pytest.approx(0, abs=1e-9)


def test_pass_at_k_by_hand() -> None:
    # One of four right, sets of two: m = 1 - C(3, 2) / C(4, 2) = 1/2, s = 1/2. Wrong: (1/2 - 2/3) / (1/2) = -1/3.
    # Three of four right: every set is right.
    found = pass_at_k(batch([1, 0, 0, 0, 1, 1, 1, 0], [0] * 4 + [1] * 4), k=2)
    assert found.tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, 0, 0, 0, 0])
    # k = 1 is GRPO with the population's std: p = 1/4, (3/4, -1/4) / sqrt(3/16).
    assert pass_at_k(batch([1, 0, 0, 0]), k=1).tolist() == pytest.approx(
        [value / math.sqrt(3 / 16) for value in (0.75, -0.25, -0.25, -0.25)]
    )


SOME = [0.2, 0.9, 0.5, 0.0, 0.6, 0.5]


@pytest.mark.parametrize(
    ("k", "published"),
    [
        (2, [0.013333, 0.18, 0.053333, 0.0, 0.08, 0.053333]),
        (3, [0.0, 0.195, 0.015, 0.0, 0.045, 0.015]),
        (6, [0.0, 0.3, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_max_at_k_is_that_of_the_papers_listing(k: int, published: list[float]) -> None:
    # What sloo_minus_one (eq. 33) of the listing in arXiv 2505.15201 returns for these rewards, times n / k.
    found = max_at_k(batch([*SOME, NAN, 0.4, 7.0], [0] * 7 + [1, 2]), k=k).tolist()
    assert found == pytest.approx([*(value * 6 / k for value in published), 0, 0, 0], abs=5e-6)


def test_the_best_of_a_group_has_its_lead_by_hand() -> None:
    # Sets of two of 1, 0, 0: row 0 leads both of its by 1. Sets of two of 1, 1, 0: a right row leads in one of two.
    assert max_at_k(batch([1, 0, 0, 1, 1, 0], [0] * 3 + [1] * 3), k=2).tolist() == [1, 0, 0, 0.5, 0.5, 0]
    # The whole group, over the std (arXiv 2503.19595): the lead 0.5 of 1, 0.5, 0, whose std is 0.5; two best lead none.
    both = batch([0, 1, 0.5, 1, 1, 0], [0] * 3 + [1] * 3)
    assert max_at_k(both, k=9, divide=True, std_eps=0.0).tolist() == pytest.approx([0, 1, 0, 0, 0, 0])
    assert max_at_k(both, k=9, divide=True, std_eps=0.5)[1].item() == pytest.approx(0.5)
    assert max_at_k(both, k=9)[1].item() == pytest.approx(0.5)


@example(reward=[0.0, 0.0, 0.0, 1.0], k=2, scale=1.0)  # a third of 1, to the bits of float64
@given(
    reward=st.lists(st.sampled_from([0.0, 1.0, 0.3, -2.0, 0.1]), min_size=1, max_size=7),
    k=st.integers(2, 5),
    scale=st.floats(0.1, 10),
)
@settings(max_examples=60)
def test_max_at_k_is_the_mean_lead_over_all_sets(reward: list[float], k: int, scale: float) -> None:
    size = min(k, len(reward))
    wanted = [0.0] * len(reward)
    for at in range(len(reward) if size > 1 else 0):
        sets = [each for each in combinations(range(len(reward)), size) if at in each]
        lead = [max(reward[i] for i in each) - max(reward[i] for i in each if i != at) for each in sets]
        wanted[at] = fmean(lead)
    found = max_at_k(batch(reward), k=k)
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)
    assert max_at_k(batch([scale * each + 1 for each in reward]), k=k).tolist() == pytest.approx(
        (scale * found).tolist(), abs=1e-9
    )


def test_unlikely_right_rows_have_more_by_hand() -> None:
    # Mean log-probs -1, -3, -2, -4: ranks 3, 1, 2, 0. Right rows 0 and 1: 1 - 0.4 * 3/4 = 0.7, 1 - 0.4 * 1/4 = 0.9.
    logp = [[-1.0, -1.0], [-3.0], [-2.0], [-4.0, -4.0, -4.0]]
    found = unlikeliness(batch([1, 1, 0, 0], logp=logp), rank_coef=0.4, std_eps=0.0)
    std = math.sqrt((0.3**2 + 0.5**2 + 2 * 0.4**2) / 3)
    assert found.tolist() == pytest.approx([0.3 / std, 0.5 / std, -0.4 / std, -0.4 / std])
    # Equally likely rows share a rank, and a group of right rows alone stays without an advantage.
    even = batch([1, 1, 0], logp=[[-2.0], [-2.0], [-2.0]])
    assert unlikeliness(even).tolist() == pytest.approx(grpo(even, std_eps=1e-6).tolist())
    assert unlikeliness(batch([1, 1, 1], logp=[[-1.0], [-2.0], [-3.0]])).tolist() == [0.0] * 3
    # Ranks are the group's: a second group, whose rows are all less likely, changes nothing.
    both = unlikeliness(batch([1, 1, 0, 0, 1, 0], [0] * 4 + [1] * 2, logp=[*logp, [-8.0], [-9.0]]), rank_coef=0.4)
    assert both[:4].tolist() == pytest.approx(found.tolist(), rel=1e-4)
    # A reward below 0 is not scaled: 1 at rank 1 of 2 is 1/2, against -1: the two are +-1/sqrt(2) over sqrt of 1/2 * 1.
    negative = unlikeliness(batch([1, -1], logp=[[-2.0], [-1.0]]), rank_coef=1.0, std_eps=1.0)
    assert negative.tolist() == pytest.approx([1 / (1 + math.sqrt(2)), -1 / (1 + math.sqrt(2))])


def test_a_masked_token_is_not_part_of_the_mean_log_prob() -> None:
    rows = batch([1, 1, 0], logp=[[-1.0, -9.0], [-2.0], [-3.0]])
    masked = rows.adding(mask=torch.tensor([True, False, True, True]))
    # -5 is the least likely with the masked token, -1 the likeliest without it.
    assert unlikeliness(rows)[0] > unlikeliness(rows)[1]
    assert unlikeliness(masked)[0] < unlikeliness(masked)[1]


def test_strata_by_calls_by_hand() -> None:
    # Strata: two rows without a call (1, 0: mean 1/2, std sqrt(1/2)), two with two (1, 1: 0). Group: mean 3/4, std 1/2.
    scored, root = batch([1, 0, 1, 1], calls=[0, 0, 2, 2]), math.sqrt(0.5)
    assert stratified(scored, alpha=1.0, std_eps=0.0).tolist() == pytest.approx([root, -root, 0, 0])
    assert stratified(scored, alpha=0.0, std_eps=0.0).tolist() == pytest.approx([0.5, -1.5, 0.5, 0.5])
    blend = stratified(scored, alpha=0.75, std_eps=0.0).tolist()
    assert blend == pytest.approx([0.75 * root + 0.125, -0.75 * root - 0.375, 0.125, 0.125])


def test_one_stratum_is_grpo_and_strata_of_two_groups_do_not_mix() -> None:
    scored = batch([1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1], calls=[1] * 6)
    assert stratified(scored).tolist() == pytest.approx(grpo(scored).tolist())
    apart = batch([1, 0, 5, 7], [0, 0, 1, 1], calls=[1, 1, 1, 1])
    assert stratified(apart, std_eps=0.0).abs().tolist() == pytest.approx([math.sqrt(0.5)] * 4)


@pytest.mark.parametrize("name", ALL)
def test_rows_without_a_reward_count_nowhere(name: str) -> None:
    settings: dict[str, Any] = {"k": 2} if name in ("max_at_k", "pass_at_k") else {}
    logp = [[-1.0], [-2.0], [-3.0], [-4.0], [-5.0]]
    alone = ALL[name](batch([1, 0, 0, 0, 1], [0, 0, 0, 1, 1], logp=logp), **settings)
    with_others = batch(
        [1, 0, NAN, 0, NAN, 0, 1],
        [0, 0, 0, 0, 0, 1, 1],
        logp=[*logp[:2], [-1.5], logp[2], [-9.0], *logp[3:]],
    )
    found = ALL[name](with_others, **settings)
    assert found[[0, 1, 3, 5, 6]].tolist() == pytest.approx(alone.tolist())
    assert (found[[2, 4]].tolist(), found.dtype) == ([0.0, 0.0], torch.float64)
    assert found.abs().sum() > 1


@pytest.mark.parametrize("name", ["max_at_k", "stratified", "unlikeliness"])
@pytest.mark.parametrize("reward", [[0.1, 0.1, 0.1], [NAN, NAN], [0.7]])
def test_equal_rewards_or_none_have_exactly_nothing(name: str, reward: list[float]) -> None:
    assert ALL[name](batch(reward)).tolist() == [0.0] * len(reward)


@pytest.mark.parametrize("name", ALL)
@given(
    rows=st.lists(st.tuples(st.sampled_from([0.0, 1.0, NAN]), st.integers(0, 2)), min_size=1, max_size=12),
    data=st.data(),
)
@settings(max_examples=30)
def test_order_does_not_count(name: str, rows: list[tuple[float, int]], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(rows))))
    scored = batch([r for r, _ in rows], [g for _, g in rows], logp=[[-float(at % 5)] for at in range(len(rows))])
    plain = ALL[name](scored)
    assert plain.isfinite().all()
    assert ALL[name](scored.select(torch.tensor(order))).tolist() == pytest.approx(plain[list(order)].tolist())
