"""HAPO's mean over tokens, the entropies of GTPO and RENT, and ASPO's calls by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.components.rows import Marks
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.advantages.tokens.groups import aspo, gtpo, hapo, rent
from gradus.models.objectives.rows import Rows

NAN = float("nan")


def rows(rewards: list[float], lengths: list[int], entropy: list[float] | None = None, group: int = 0) -> Rows:
    reward = torch.tensor(rewards, dtype=torch.float64)
    values = entropy or [0.0] * sum(lengths)
    of_tokens = {"now.entropy": torch.tensor(values)}
    return Rows({"reward": reward, "group": torch.full((len(rewards),), group)}, of_tokens, torch.tensor(lengths))


def test_hapo_is_normalised_over_tokens_by_hand() -> None:
    # Tokens 3 of reward 1, 1 of reward 0: mean 3/4, std sqrt(3/16).
    std = math.sqrt(3 / 16)
    found = hapo(rows([1, 0, NAN], [3, 1, 5]), std_eps=0.0)
    assert found.tolist() == pytest.approx([0.25 / std, -0.75 / std, 0])
    assert hapo(rows([1, 1], [3, 1])).tolist() == [0, 0]
    assert hapo(rows([1], [3])).tolist() == [0]
    # 99 tokens against one: -0.99 / sqrt(0.99 * 0.01) is below -5, so the group is normalised by answers, as is one in
    # which one reward alone has tokens.
    far = rows([1, 0], [99, 1])
    assert hapo(far).tolist() == pytest.approx(grpo(far, std_eps=1e-6).tolist())
    assert hapo(rows([1, 0], [9, 0])).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)
    assert hapo(far, largest=10.0)[1] == pytest.approx(-0.99 / math.sqrt(0.0099), abs=1e-4)


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), min_size=2, max_size=8))
def test_hapo_sums_to_zero_over_tokens_and_is_that_of_the_group_of_repeated_rows(data: list[tuple[float, int]]) -> None:
    step = rows([reward for reward, _ in data], [length for _, length in data])
    found = hapo(step, largest=1e9)
    assert float((found * step.lengths).sum()) == pytest.approx(0, abs=1e-5 * float(step.lengths.sum()))
    repeated = torch.repeat_interleave(step["reward"], step.lengths)
    if bool((repeated != repeated[0]).any()):
        expected = (step["reward"] - repeated.mean()) / (repeated.std(correction=0) + 1e-6)
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-9)


def test_gtpo_takes_entropy_from_the_advantage_by_hand() -> None:
    # Rewards 1 0 0: A = 2/3 and -1/3 over sqrt(1/3); mean entropies 0.4, 0.7 and 1: the last is left out.
    std = math.sqrt(1 / 3)
    found = gtpo(rows([1, 0, 0, NAN], [2, 1, 1, 1], [0.2, 0.6, 0.5, 1.0, 0.1]), std_eps=0.0)
    assert found.tolist() == pytest.approx([2 / 3 / std - 0.04, -1 / 3 / std - 0.05, 0, 0])
    assert gtpo(rows([1, 1], [1, 1], [0.1, 0.2])).tolist() == [0, 0]
    assert gtpo(rows([1, 0], [1, 0], [0.3]), scale=0.0, std_eps=0.0).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])


def test_rent_rewards_certainty_by_hand() -> None:
    # Mean entropies 0.5, 0.1 and 0.3: c - mean(c) = -0.2, 0.2 and 0, std 0.2. The third row's second token is masked.
    step = rows([NAN, 0, 1, 1], [2, 1, 2, 0], [0.4, 0.6, 0.1, 0.3, 9.0])
    step = step.adding(mask=torch.tensor([True] * 4 + [False]))
    assert rent(step, std_eps=0.0).tolist() == pytest.approx([-1, 1, 0, 0], abs=1e-6)
    assert rent(step, std_eps=0.2)[:2].tolist() == pytest.approx([-0.5, 0.5], abs=1e-6)
    assert rent(rows([1], [2], [0.1, 0.2])).tolist() == [0]
    assert rent(rows([1, 0], [1, 1], [0.25, 0.25])).tolist() == [0, 0]


@settings(max_examples=30)
@given(st.lists(st.floats(0, 5), min_size=2, max_size=6), st.floats(0.5, 2.0), st.permutations(range(6)))
def test_rent_sums_to_zero_whatever_the_unit_of_entropy(entropy: list[float], scale: float, order: list[int]) -> None:
    step = rows([0.0] * len(entropy), [1] * len(entropy), entropy)
    found = rent(step, std_eps=0.0)
    assert float(found.sum()) == pytest.approx(0, abs=1e-6)
    if max(entropy) - min(entropy) > 1e-2:
        scaled = rows([0.0] * len(entropy), [1] * len(entropy), [scale * each for each in entropy])
        assert rent(scaled, std_eps=0.0).tolist() == pytest.approx(found.tolist(), abs=1e-3)
    chosen = torch.tensor([each for each in order if each < len(entropy)])
    assert rent(step.select(chosen)).tolist() == pytest.approx(rent(step)[chosen].tolist(), abs=1e-9)


def calling(rewards: list[float], lengths: list[int], calls: list[tuple[int, int]], group: list[int]) -> Rows:
    """Rows that call tools: (row, first token) of each call, of one token."""
    row, start = (torch.tensor([each[at] for each in calls], dtype=torch.int64) for at in (0, 1))
    marks = Marks(row, start, start + 1, torch.full((len(calls),), NAN), np.array([None] * len(calls)))
    reward = torch.tensor(rewards, dtype=torch.float64)
    columns = {"reward": reward, "correct": (reward > 0.5).double(), "group": torch.tensor(group)}
    columns["length"] = torch.tensor(lengths)
    return Rows(columns, {"old": torch.zeros(sum(lengths))}, torch.tensor(lengths), marks={"marks.call": marks})


def test_early_calls_of_right_answers_have_more_by_hand() -> None:
    # Rows 0, 1 and 5 are right and call at 2 (before 6), 6 and 4: mean 4, mean length (10 + 20 + 30) / 3 = 20; the
    # shifts are -2 (p - 4) / 20 = 0.2, -0.2, 0. Row 2 is right without a call, 3 wrong with one, 4 unjudged.
    step = calling(
        [1, 1, 1, 0, NAN, 1], [10, 20, 8, 40, 5, 30], [(0, 6), (0, 2), (1, 6), (3, 1), (4, 0), (5, 4)], [0] * 6
    )
    own = grpo(step, std_eps=0.0)
    assert aspo(step, std_eps=0.0).tolist() == pytest.approx((own + torch.tensor([0.2, -0.2, 0, 0, 0, 0])).tolist())
    assert own[0].item() == pytest.approx(0.2 / math.sqrt(0.2))  # 1 1 1 0 1: mean 0.8, squares 0.8 over 4
    # Cut at 0.1 of 0.4472: the sign stays, and so does the advantage of the mean call.
    cut = aspo(step, delta=-50.0, most=0.1, std_eps=0.0)
    assert (cut / own)[[0, 1, 2, 3, 5]].tolist() == pytest.approx([1.1, 0.9, 1, 1, 1])
    # Nothing to bound the shift by where all are right; a lone caller is at the mean; groups do not mix.
    assert aspo(calling([1, 1], [5, 5], [(0, 1), (1, 3)], [0, 0])).tolist() == [0, 0]
    apart = calling([1, 0, 1, 0], [9] * 4, [(0, 1), (2, 8)], [0, 0, 1, 1])
    assert aspo(apart).tolist() == grpo(apart).tolist()
    none = calling([1, 0, 0.2], [3, 2, 1], [], [0, 0, 0])
    assert aspo(none).tolist() == grpo(none).tolist()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, NAN]), st.integers(1, 30), st.booleans()), min_size=2, max_size=8))
def test_a_call_changes_no_sign_and_follows_the_rows(data: list[tuple[float, int, bool]]) -> None:
    calls = [(at, length // 2) for at, (_, length, does) in enumerate(data) if does]
    step = calling([each[0] for each in data], [each[1] for each in data], calls, [0] * len(data))
    found, own = aspo(step, delta=-30.0), grpo(step)
    assert torch.sign(found).tolist() == torch.sign(own).tolist()
    assert bool(((found - own).abs() <= 0.7 * own.abs() + 1e-12).all())
