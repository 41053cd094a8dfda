"""The learning rate of a step, against values worked out by hand."""

import math

import pytest

from gradus.models.training.settings import learning_rate


def test_it_rises_and_stays() -> None:
    found = [learning_rate(step, lr=0.4, warmup_steps=4) for step in range(6)]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert learning_rate(0, lr=0.4) == learning_rate(999, lr=0.4) == 0.4


def test_it_rises_falls_and_stays() -> None:
    # Warm-up in quarters, then 0.1 + 0.45 (1 + cos(pi k / 4)) for k = 0 to 4, then a tenth for good.
    half = math.sqrt(0.5)
    expected = [0.25, 0.5, 0.75, 1.0, 1.0, 0.55 + 0.45 * half, 0.55, 0.55 - 0.45 * half, 0.1, 0.1]
    found = [learning_rate(step, lr=1.0, warmup_steps=4, decay_steps=8) for step in range(10)]
    assert found == pytest.approx(expected)
    assert learning_rate(1, lr=1.0, decay_steps=2) == pytest.approx(0.55)


def test_a_decay_that_would_end_within_the_warm_up_ends_right_after_it() -> None:
    assert [learning_rate(step, lr=1.0, warmup_steps=4, decay_steps=2) for step in (3, 4, 5)] == pytest.approx(
        [1.0, 1.0, 0.1]
    )
