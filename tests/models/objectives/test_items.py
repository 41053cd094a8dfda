"""Rank-GRPO's items by hand, and against a dense form with NumPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.components.rows import Marks
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.advantages.tokens.items import rank_grpo
from gradus.models.objectives.rows import Rows

NAN = math.nan
Item = tuple[int, int, int, float]
"""Row, first token, the one behind the last, relevance."""


def lists(rewards: list[float], lengths: list[int], items: list[Item], group: list[int] | None = None) -> Rows:
    row, start, end = (torch.tensor([int(each[at]) for each in items], dtype=torch.int64) for at in range(3))
    value = torch.tensor([each[3] for each in items], dtype=torch.float64)
    marks = Marks(row, start, end, value, np.array([None] * len(items)))
    columns = {"reward": torch.tensor(rewards, dtype=torch.float64), "group": torch.tensor(group or [0] * len(rewards))}
    return Rows(columns, {"old": torch.zeros(sum(lengths))}, torch.tensor(lengths), marks={"marks.item": marks})


def test_an_item_is_compared_with_those_at_its_place_by_hand() -> None:
    # Gains: row 0 has hits at 1 and 3, 1 + 1/2 from the first on, 1/2 from 2 and 3 on; row 1 one at 2, 1/log2(3) = d.
    # A third list is shorter than they are. Marks are out of order; tokens 0 and 6 are between items.
    items = [
        (0, 4, 6, 1.0),
        (0, 1, 2, 1.0),
        (0, 2, 4, 0.0),
        (1, 0, 1, 0.0),
        (1, 1, 2, 1.0),
        (1, 2, 3, NAN),
        (2, 0, 2, 0.0),
    ]
    step = lists([0.0, 0.0, 0.0], [7, 3, 2], items)
    d = 1 / math.log2(3)

    def normed(values: list[float]) -> list[float]:
        return ((np.array(values) - np.mean(values)) / np.std(values, ddof=1)).tolist()

    first, second, third = normed([1.5, d, 0.0]), normed([0.5, d, 0.0]), normed([0.5, 0.0, 0.0])
    wanted = [
        0,
        first[0],
        second[0],
        second[0],
        third[0],
        third[0],
        0,
        first[1],
        second[1],
        third[1],
        first[2],
        first[2],
    ]
    assert rank_grpo(step, std_eps=0.0).tolist() == pytest.approx(wanted)
    # Each item by its own relevance: 1 0 0, 0 1 0, 1 0 0 by place.
    own = rank_grpo(step, onwards=False, std_eps=0.0)
    high, low = 2 / 3 / math.sqrt(1 / 3), -1 / 3 / math.sqrt(1 / 3)
    assert own.tolist() == pytest.approx([0, high, low, low, high, high, 0, low, high, low, low, low])


def test_lists_without_items_or_rewards_and_lone_or_equal_ones_have_nothing() -> None:
    assert rank_grpo(lists([1.0, 0.0], [2, 3], [])).tolist() == [0.0] * 5
    assert rank_grpo(lists([1.0], [2], [(0, 0, 2, 1.0)])).tolist() == [0.0, 0.0]
    assert rank_grpo(lists([1.0, 1.0], [1, 1], [(0, 0, 1, 0.1), (1, 0, 1, 0.1)])).tolist() == [0.0, 0.0]
    # An unjudged row is compared with none: the two others are 1 and 0. An empty row has no tokens to teach.
    step = lists([0.0, NAN, 0.0, 0.0], [1, 1, 1, 0], [(0, 0, 1, 1.0), (1, 0, 1, 5.0), (2, 0, 1, 0.0)], [0, 0, 0, 1])
    assert rank_grpo(step, std_eps=0.0).tolist() == pytest.approx([math.sqrt(0.5), 0, -math.sqrt(0.5)])


def test_lists_of_one_item_over_all_tokens_are_grpo() -> None:
    rewards, lengths = [1.0, 0.0, 0.0, 0.5, 0.2], [2, 1, 3, 1, 4]
    items = [(row, 0, lengths[row], rewards[row]) for row in range(5)]
    step = lists(rewards, lengths, items, [0, 0, 0, 1, 1])
    assert rank_grpo(step).tolist() == pytest.approx(grpo(step)[step.row].tolist())


@given(
    relevance=st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.5]), max_size=4), min_size=2, max_size=6),
    onwards=st.booleans(),
    data=st.data(),
)
@settings(max_examples=30)
def test_the_dense_form(relevance: list[list[float]], onwards: bool, data: st.DataObject) -> None:
    num, size = len(relevance), max(map(len, relevance))
    group = data.draw(st.lists(st.integers(0, 1), min_size=num, max_size=num))
    items = [(row, at, at + 1, value) for row, values in enumerate(relevance) for at, value in enumerate(values)]
    step = lists([0.0] * num, [len(each) for each in relevance], items, group)
    dense = np.zeros((num, size))
    for row, values in enumerate(relevance):
        dense[row, : len(values)] = values
    if onwards:
        gains = dense / np.log2(np.arange(size) + 2)
        dense = gains.sum(1, keepdims=True) - np.cumsum(gains, 1) + gains  # total less what was before
    wanted = np.zeros_like(dense)
    for number in set(group):
        own = np.array(group) == number
        if own.sum() > 1:
            wanted[own] = (dense[own] - dense[own].mean(0)) / (dense[own].std(0, ddof=1) + 0.5)
    expected = [wanted[row, at] for row, at, _, _ in items]
    assert rank_grpo(step, onwards=onwards, std_eps=0.5).tolist() == pytest.approx(expected, abs=1e-9)
    order = torch.tensor(data.draw(st.permutations(range(num))), dtype=torch.int64)
    again = rank_grpo(step.select(order), onwards=onwards, std_eps=0.5)
    assert again.tolist() == pytest.approx([expected[at] for at in step.places(order).tolist()], abs=1e-9)
