"""Aggregations by hand: three rows of two groups, and rows without tokens that count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.objectives.aggregations.lengths import delta_l, prompt_mean, sequence_sum
from gradus.models.objectives.aggregations.means import fixed_length, sequence_mean, token_mean
from gradus.models.objectives.rows import Rows


def rows(lengths: list[int], group: list[int], mask: list[bool] | None = None) -> Rows:
    tokens = {"x": torch.zeros(sum(lengths))}
    counted = None if mask is None else torch.tensor(mask, dtype=torch.bool)
    return Rows({"group": torch.tensor(group)}, tokens, torch.tensor(lengths), counted)


MASKED = rows([2, 0, 3, 1], [7, 7, 3, 4], [True, True, True, False, False, False])
"""Counted tokens: 2, 0, 1 and 0, so that two rows and two of three groups count."""


def test_every_token_weighs_one_over_the_completions() -> None:
    assert sequence_sum(MASKED)[MASKED.mask].tolist() == [0.5] * 3


def test_every_prompt_weighs_the_same() -> None:
    # Group 0 has rows of one and three tokens, group 1 one of two: 1 / (2 groups * 4 tokens), 1 / (2 * 2).
    assert prompt_mean(rows([1, 3, 2], [0, 0, 1])).tolist() == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    assert prompt_mean(MASKED)[MASKED.mask].tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 2])


def test_delta_l_weighs_short_completions_more() -> None:
    # Lengths 1 and 4, alpha 1/2: 1 and 1/2 over 3/2, and over M = 10.
    found = delta_l(rows([1, 4], [0, 0]), alpha=0.5, length_tokens=10)
    assert found.tolist() == pytest.approx([2 / 30, *[1 / 30] * 4])
    assert delta_l(MASKED, alpha=1.0)[MASKED.mask].tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3])


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.floats(0, 1))
def test_delta_l_is_the_form_of_its_code(lengths: list[int], alpha: float) -> None:
    # Authors' code: (L / mean L)^-alpha over its mean, beside a mean over completions and M places.
    relative = [(each * len(lengths) / sum(lengths)) ** -alpha for each in lengths]
    expected = [each * len(lengths) / sum(relative) / (len(lengths) * 9) for each in relative]
    found = delta_l(rows(lengths, [0] * len(lengths)), alpha=alpha, length_tokens=9)
    assert found.tolist() == pytest.approx([w for w, n in zip(expected, lengths, strict=True) for _ in range(n)])


@pytest.mark.slow
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_special_cases_are_the_other_aggregations(lengths: list[int]) -> None:
    alone = rows(lengths, list(range(len(lengths))))
    assert prompt_mean(alone).tolist() == pytest.approx(sequence_mean(alone).tolist())
    together = rows(lengths, [0] * len(lengths))
    assert prompt_mean(together).tolist() == pytest.approx(token_mean(together).tolist())
    fixed = fixed_length(alone, length_tokens=7).tolist()
    assert delta_l(alone, alpha=0.0, length_tokens=7).tolist() == pytest.approx(fixed)
    assert [each / 7 for each in sequence_sum(alone).tolist()] == pytest.approx(fixed)


@pytest.mark.parametrize("aggregation", [sequence_sum, prompt_mean, delta_l])
def test_a_step_without_tokens_has_no_weights_that_are_not_finite(aggregation: object) -> None:
    assert aggregation(rows([0, 0], [0, 1])).tolist() == []  # type: ignore[operator]
    uncounted = aggregation(rows([2], [0], [False, False]))  # type: ignore[operator]
    assert bool(torch.isfinite(uncounted).all())
