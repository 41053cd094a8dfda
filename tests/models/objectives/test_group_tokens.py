"""HAPO's mean over tokens and GTPO's entropies by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.advantages.tokens.groups import gtpo, hapo
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
