"""Conflict tokens by hand and against their definition token by token; places of disagreement by hand."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.conflicts import gtpo, tw_grpo


def rows(rewards: list[float], groups: list[int], texts: list[list[int]]) -> Rows:
    tokens = torch.tensor([token for text in texts for token in text], dtype=torch.int64)
    reward = torch.tensor(rewards, dtype=torch.float64)
    return Rows(
        {"reward": reward, "group": torch.tensor(groups)}, {"tokens": tokens}, torch.tensor([len(t) for t in texts])
    )


def test_shared_beginnings_and_ends_are_protected_by_hand() -> None:
    texts = [[1, 2, 3, 9], [1, 2, 5, 9], [1, 4, 2, 9, 9], [1, 9], []]
    found, metrics = gtpo(rows([1, 0, 0, 1, 0], [0, 0, 0, 1, 0], texts))
    # The right answer shares 1 2 at its start and 9 at its end: weight 2, over 3 conflict tokens. Of the third, 1 at
    # the start and the last 9 alone: the 9 before it stands beside 3 of the right answer, and ends the run.
    expected = [[2 / 3, 2 / 3, 1 / 3, 2 / 3], [0, 0, 1 / 3, 0], [0, 1 / 2, 1 / 2, 1 / 2, 0], [1, 1], []]
    assert found.tolist() == pytest.approx([each for text in expected for each in text])
    assert metrics["conflict_frac"].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 0, 0]


def test_an_equal_text_counts_from_both_ends() -> None:
    # Every token is in conflict twice, so the right one weighs 2 * 2, over 2 tokens; a row without a reward, none.
    found = gtpo(rows([1, 0, float("nan")], [0, 0, 0], [[7, 8], [7, 8], [7, 8]]))[0]
    assert found.tolist() == pytest.approx([2, 2, 0, 0, 1, 1])
    assert gtpo(rows([1, 1], [0, 0], [[7], [7]]))[0].tolist() == [1, 1]
    assert len(gtpo(rows([1, 0], [0, 0], [[], []]))[0]) == 0


@given(st.data())
def test_the_weights_are_those_of_the_definition(data: Any) -> None:
    num = data.draw(st.integers(1, 6))
    texts = [data.draw(st.lists(st.integers(0, 1), max_size=4)) for _ in range(num)]
    groups = [data.draw(st.integers(0, 1)) for _ in range(num)]
    rewards = [float(data.draw(st.integers(0, 2))) for _ in range(num)]
    sides = []
    for group, reward in zip(groups, rewards, strict=True):
        mean = sum(r for g, r in zip(groups, rewards, strict=True) if g == group) / groups.count(group)
        sides.append(0 if abs(reward - mean) < 1e-9 else 1 if reward > mean else -1)

    def conflicts(row: int, place: int, step: int) -> bool:
        """Return whether a token (0 the first, -1 the last) and all before it, or behind it, are in conflict."""
        if not -len(texts[row]) <= place < len(texts[row]):
            return False
        found = {
            sides[other]
            for other in range(num)
            if groups[other] == groups[row]
            and -len(texts[other]) <= place < len(texts[other])
            and texts[other][place] == texts[row][place]
        }
        before = place in (0, -1) or conflicts(row, place - step, step)
        return sides[row] != 0 and found >= {1, -1} and before

    expected: list[float] = []
    for row, text in enumerate(texts):
        factor = {1: 3.0, 0: 1.0, -1: 0.0}[sides[row]]
        both = [(conflicts(row, t, 1), conflicts(row, t - len(text), -1)) for t in range(len(text))]
        number = max(1, sum(one or other for one, other in both))
        expected += [factor ** (one + other) / number if one or other else 1 / number for one, other in both]
    assert gtpo(rows(rewards, groups, texts), conflict=3.0)[0].tolist() == pytest.approx(expected)


def test_places_of_disagreement_weigh_more_by_hand() -> None:
    # Group 0 has D = 1, 3, 2 and 1, 3; a masked 9 counts nowhere, and group 1 has one value alone.
    nan = float("nan")
    values = torch.tensor([1.0, 3.0, 2.0, 1.0, 3.0, 9.0, 5.0, 5.0, nan])
    mask = torch.tensor([True] * 5 + [False] + [True] * 3)
    step = Rows({"group": torch.tensor([0, 0, 1, 2])}, {"divergence.tokens": values}, torch.tensor([3, 3, 2, 1]), mask)
    weight, metrics = tw_grpo(step, most=1.5)
    assert weight.tolist() == pytest.approx([1, 1.5, 1.25, 1, 1.5, 1.5, 1, 1, 1])
    assert metrics["divergence_mean"].tolist() == [1, 3, 2, 1, 3, 9, 5, 5, 0]
