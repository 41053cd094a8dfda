"""KTAE against SciPy's Fisher test and sums by hand, TEMPO against its prefix tree answer by answer."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact
from torch import Tensor

from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.advantages.tokens.shared import ktae, tempo
from gradus.models.objectives.rows import Rows

NAN = float("nan")


def rows(rewards: list[float], groups: list[int], texts: list[list[int]], mask: Tensor | None = None) -> Rows:
    tokens = torch.tensor([token for text in texts for token in text], dtype=torch.int64)
    reward = torch.tensor(rewards, dtype=torch.float64)
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int64)
    return Rows({"reward": reward, "group": torch.tensor(groups, dtype=torch.int64)}, {"tokens": tokens}, lengths, mask)


def by_row(values: Tensor, texts: list[list[int]]) -> list[list[float]]:
    return [each.tolist() for each in values.split([len(text) for text in texts])]


TEXTS = [[1, 2, 3, 3], [1, 2], [1, 4], [1, 4, 5], [6]]
"""Two right answers and two wrong ones of a group, and the only answer of another."""


def test_the_values_of_ktae_by_hand() -> None:
    found = by_row(ktae(rows([1, 1, 0, 0, 1], [0, 0, 0, 0, 7], TEXTS), frequency=False, std_eps=0.0), TEXTS)
    base = 0.5 / math.sqrt(1 / 3)  # rewards 1 1 0 0: mean 1/2, std sqrt(1/3)

    def squashed(k: float) -> float:
        return 2 / (1 + math.exp(-k)) - 1

    # Token 1 is in all four: p = 1, no information, no direction. Token 2 is in both right answers and no wrong one:
    # p = 2 / (4 choose 2) = 1/3, one bit, pi/2. Token 3 (once counted) is in one right answer: p = 1, IG =
    # 1 - 3/4 H(1/3), asin sqrt(1/2) = pi/4. Tokens 4 and 5 mirror 2 and 3.
    whole = squashed((math.exp(-2 / 3) + 1) / 2 * math.pi / 2)
    entropy = -(math.log2(1 / 3) / 3 + 2 / 3 * math.log2(2 / 3))
    part = squashed((1 - 3 / 4 * entropy) / 2 * math.pi / 4)
    assert found[0] == pytest.approx([base, base + whole, base + part, base + part])
    assert found[1] == pytest.approx([base, base + whole])
    assert found[2] == pytest.approx([-base, -base - whole])
    assert found[3] == pytest.approx([-base, -base - whole, -base - part])
    assert found[4] == [0.0]


def test_the_frequencies_of_ktae_by_hand() -> None:
    # Token 1 twice in the one right answer of three tokens, once in the wrong one of one: the tables are equal, so p is
    # 1 and no bit is gained: F = IG = 0 whatever the frequencies are. Token 2: a, b, c, d = 1, 0, 0, 1: p = 1, IG = 1.
    found = ktae(rows([2, -1], [0, 0], [[1, 1, 2], [1]]), std_eps=0.0)
    base = 1.5 / (3 / math.sqrt(2))

    def frequency(share: float, length: float) -> float:  # length over the mean of both
        return share * 3 / (share + 2 * (0.5 + 0.5 * length))

    direction = math.pi / 2 + frequency(1 / 3, 3 / 2) / 1e-5 - 0
    assert found.tolist() == pytest.approx([base, base, base + 2 / (1 + math.exp(-direction / 2)) - 1, -base])
    # Token 1 in both right answers and one of two wrong ones, of 4 and of 3 tokens: 2 of 4 against 1 of 3.
    texts = [[1, 8], [1, 9], [1], [7, 7]]
    found = ktae(rows([1, 1, 0, 0], [0] * 4, texts), std_eps=0.0, scale=0.1)
    right, wrong = frequency(1 / 2, 8 / 7), frequency(1 / 3, 6 / 7)
    x = math.pi / 4 + right / (wrong + 1e-5) - wrong / (right + 1e-5)
    gain = 1 - 3 / 4 * -(math.log2(1 / 3) / 3 + 2 / 3 * math.log2(2 / 3))
    expected = 0.5 / math.sqrt(1 / 3) + 0.1 * (2 / (1 + math.exp(-gain / 2 * x)) - 1)
    assert float(found[0]) == pytest.approx(expected)


@pytest.mark.slow
@given(st.integers(1, 7), st.integers(1, 7), st.data())
def test_the_test_of_ktae_is_that_of_scipy(right: int, wrong: int, data: Any) -> None:
    a, b = data.draw(st.integers(0, right)), data.draw(st.integers(0, wrong))
    texts = [[1] if n < a else [2] for n in range(right)] + [[1] if n < b else [2] for n in range(wrong)]
    step = rows([1.0] * right + [0.0] * wrong, [0] * (right + wrong), texts)
    found = ktae(step, gain=0.0, frequency=False) - grpo(step, std_eps=1e-6)[step.row]
    found_p: Any = fisher_exact([[a, b], [right - a, wrong - b]])
    p = float(found_p.pvalue)
    strength = 0.0 if p > 1 - 1e-9 else math.exp(-2 * p)
    x = math.asin(math.sqrt(a / right)) - math.asin(math.sqrt(b / wrong))
    value = math.tanh(strength * x / 2)  # 2 sigmoid(k) - 1
    assert found.tolist() == pytest.approx([value if text == [1] else -value for text in texts], abs=1e-9)


def test_ktae_of_masked_named_missing_and_one_sided() -> None:
    plain = ktae(rows([1, 1, 0, 0, 1], [0, 0, 0, 0, 7], TEXTS))
    # A row without a reward, and masked tokens that only one side has, change nothing of the others.
    texts = [*TEXTS, [2, 4], [9]]
    mask = torch.tensor([*([True] * 12), True, True, False])
    more = ktae(rows([1, 1, 0, 0, 1, NAN, NAN], [0, 0, 0, 0, 7, 0, 7], texts, mask))
    assert more.tolist() == pytest.approx([*plain.tolist(), 0, 0, 0])
    masked = ktae(rows([1, 0], [0, 0], [[1, 2], [1]], torch.tensor([True, False, True])), frequency=False)
    assert masked.tolist() == pytest.approx([1 / math.sqrt(2), 1 / math.sqrt(2), -1 / math.sqrt(2)], abs=1e-5)
    named = ktae(rows([1, 0], [0, 0], [[2], [4]]), without=(2,))
    assert float(named[0]) == pytest.approx(1 / math.sqrt(2), abs=1e-5)
    assert float(named[1]) < -1
    # Right and wrong alone, whatever the rewards: the outcome's advantage stays.
    both = ktae(rows([1, 2], [0, 0], [[1], [2]]))
    assert both.tolist() == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)], abs=1e-5)
    assert ktae(rows([1, 0], [0, 0], [[1], [2]]), fisher=0.0, gain=0.0).tolist() == pytest.approx(
        [1 / math.sqrt(2), -1 / math.sqrt(2)], abs=1e-5
    )
    assert len(ktae(rows([1, 0], [0, 0], [[], []]))) == 0


def test_tempo_by_hand() -> None:
    # Rewards 1 1 0 0, mean 1/2, std sqrt(1/3). All begin with 1 (V = 1/2); 1 2 has V = 1, 1 4 has V = 0.
    std = math.sqrt(1 / 3)
    found = by_row(tempo(rows([1, 1, 0, 0, 1], [0, 0, 0, 0, 7], TEXTS), std_eps=0.0), TEXTS)
    assert found[0] == pytest.approx([0.5 / std, 1 / std, 0.5 / std, 0.5 / std])
    assert found[1] == pytest.approx([0.5 / std, 1 / std])
    assert found[2] == pytest.approx([-0.5 / std, -1 / std])
    assert found[3] == pytest.approx([-0.5 / std, -1 / std, -0.5 / std])
    assert found[4] == [0.0]
    # Parting twice: V of 1 is 1/3 of three rewards 1 0 0, of 1 2 it is 1/2, of 1 2 5 it is 0.
    found = tempo(rows([1, 0, 0], [0, 0, 0], [[1, 2, 3], [1, 2, 5], [1, 4]]), std_eps=0.0)
    gains = [0, 1 / 6, 1 / 2, 0, 1 / 6, -1 / 2, 0, -1 / 3]
    centred = [2 / 3] * 3 + [-1 / 3] * 5
    assert found.tolist() == pytest.approx([(c + g) / std for c, g in zip(centred, gains, strict=True)])


def test_tempo_of_equal_missing_and_empty() -> None:
    assert tempo(rows([1, 1], [0, 0], [[1, 2], [1, 3]])).tolist() == [0] * 4
    # The row without a reward counts in no V: 1 2 has only the right one.
    found = tempo(rows([1, 0, NAN, 0], [0, 0, 0, 0], [[1, 2], [1, 3], [1, 2], []]), std_eps=0.0)
    std = math.sqrt(1 / 3)
    centred = [2 / 3, -1 / 3]
    expected = [centred[0] + 1 / 2 - 1 / 3, centred[0] + 1 / 2, centred[1] + 1 / 2 - 1 / 3, centred[1] - 1 / 2]
    assert found.tolist() == pytest.approx([*(value / std for value in expected), 0, 0])
    assert len(tempo(rows([1, 0], [0, 0], [[], []]))) == 0


@st.composite
def answers(draw: Callable[..., Any]) -> tuple[list[float], list[int], list[list[int]]]:
    num = draw(st.integers(1, 7))
    drawn = (st.integers(0, 2).map(float), st.integers(0, 1), st.lists(st.integers(0, 1), max_size=4))
    rewards, groups, texts = ([draw(each) for _ in range(num)] for each in drawn)
    return rewards, groups, texts


@given(answers())
def test_tempo_is_that_of_its_prefix_tree(given_rows: tuple[list[float], list[int], list[list[int]]]) -> None:
    rewards, groups, texts = given_rows

    def value(group: int, prefix: list[int]) -> float:
        found = [r for r, g, t in zip(rewards, groups, texts, strict=True) if g == group and t[: len(prefix)] == prefix]
        return sum(found) / len(found)

    step = rows(rewards, groups, texts)
    std = step.by("group").std(step["reward"]) + 1e-6
    for row, (text, got) in enumerate(zip(texts, by_row(tempo(step), texts), strict=True)):
        group = groups[row]
        centred = rewards[row] - value(group, [])
        gains = [value(group, text[: t + 1]) - value(group, text[:t]) for t in range(len(text))]
        flat = len({r for r, g in zip(rewards, groups, strict=True) if g == group}) == 1
        expected = [0.0 if flat else (centred + gain) / float(std[row]) for gain in gains]
        assert got == pytest.approx(expected, abs=1e-7)


@pytest.mark.slow
@given(answers(), st.randoms(use_true_random=False))
def test_rows_in_another_order_and_tokens_of_other_ids_change_nothing(
    given_rows: tuple[list[float], list[int], list[list[int]]], random: Any
) -> None:
    rewards, groups, texts = given_rows
    order = list(range(len(texts)))
    random.shuffle(order)
    renamed = [[7 - 3 * token for token in texts[n]] for n in order]
    other = rows([rewards[n] for n in order], [groups[n] for n in order], renamed)
    for method in (tempo, ktae):
        one = by_row(method(rows(*given_rows)), texts)
        assert by_row(method(other), renamed) == [pytest.approx(one[n], abs=1e-9) for n in order]
