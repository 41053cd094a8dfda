"""Schedules against numbers by hand."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.schedules.curves import cosine, linear, steps
from gradus.data.schedules.progress import Progress, ScheduleError
from gradus.data.schedules.signals import by_metric, by_target, history_mean

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def test_linear_goes_straight_from_the_first_round_to_the_last_and_stays() -> None:
    found = [linear(Progress(round), start=1.0, end=0.2, rounds=5) for round in (1, 2, 3, 4, 5, 9)]
    assert found == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    assert (found[0], found[4]) == (1.0, 0.2)  # to the bit
    assert linear(Progress(1), start=1.0, end=0.2, rounds=1) == 0.2


def test_linear_over_tokens() -> None:
    found = [linear(Progress(7, tokens), start=0.0, end=8.0, tokens=400) for tokens in (0, 100, 400, 900)]
    assert found == [0.0, 2.0, 8.0, 8.0]


def test_cosine_is_flat_at_both_ends() -> None:
    found = [cosine(Progress(round), start=1.0, end=0.0, rounds=7) for round in (1, 3, 4, 5, 7, 8)]
    # shares 0, 1/3, 1/2, 2/3, 1, 1, whose cosines of pi times them are 1, 1/2, 0, -1/2, -1, -1
    assert found == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0, 0.0])


def test_steps_hold_a_number_up_to_the_next_one() -> None:
    found = [steps(Progress(round), values=(8.0, 4.0, 2.0), at=(3, 6)) for round in (1, 2, 3, 5, 6, 100)]
    assert found == [8.0, 8.0, 4.0, 4.0, 2.0, 2.0]
    assert steps(Progress(5), values=(0.5,)) == 0.5


def test_by_metric_follows_the_newest_value_within_its_band() -> None:
    def at(*entropy: float) -> float:
        now = Progress(9, metrics={"policy/entropy": entropy})
        return by_metric(now, metric="policy/entropy", low=0.2, high=0.6, start=0.01, end=0.0)

    assert [at(9.0, 0.1), at(0.2), at(0.3), at(0.6), at(5.0)] == pytest.approx([0.01, 0.01, 0.0075, 0.0, 0.0])
    assert at() == 0.01  # nothing is measured yet


def test_history_mean_is_that_of_all_rounds_before() -> None:
    now = Progress(4, metrics={"policy/entropy": (0.2, 0.4, 0.9)})
    assert history_mean(now, metric="policy/entropy") == pytest.approx(0.5)
    assert history_mean(now, metric="policy/entropy", least=0.6) == 0.6
    assert history_mean(Progress(1), metric="policy/entropy", start=0.3) == 0.3


def test_by_target_rises_while_the_metric_is_below_it_and_is_off_above() -> None:
    def at(*entropy: float, gated: bool = True) -> float:
        now = Progress(9, metrics={"policy/entropy": entropy})
        return by_target(now, metric="policy/entropy", target=0.2, step=0.001, start=0.005, greatest=0.007, gated=gated)

    # Numbers of Skywork-OR1: 0.005 at first, 0.001 a step, target 0.2. At the target it rises, as in TRL 1.16.
    assert [at(), at(0.1), at(0.1, 0.1, 0.1)] == pytest.approx([0.005, 0.006, 0.007])
    assert at(0.1, 0.3) == 0.0
    assert at(0.1, 0.3, gated=False) == pytest.approx(0.005)
    assert at(0.3, 0.3, 0.1) == pytest.approx(0.004)  # the number fell while it was off
    assert at(*[0.3] * 9, 0.1) == pytest.approx(0.001)  # not below 0
    assert at(0.2) == pytest.approx(0.006)


@pytest.mark.parametrize(
    ("schedule", "settings", "message"),
    [
        (linear, {"start": 1.0, "end": 0.0}, "either rounds or tokens"),
        (cosine, {"start": 1.0, "end": 0.0, "rounds": 3, "tokens": 3}, "either rounds or tokens"),
        (steps, {"values": (1.0, 2.0), "at": ()}, "2 values and 0 rounds"),
        (steps, {"values": (1.0, 2.0, 3.0), "at": (5, 4)}, "ascending"),
        (by_metric, {"metric": "m", "low": 1.0, "high": 1.0, "start": 0.0, "end": 1.0}, "is not below"),
    ],
)
def test_settings_that_make_no_number(schedule: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        schedule(Progress(1), **settings)


@given(start=NUMBERS, end=NUMBERS, rounds=st.integers(1, 1000), now=st.integers(1, 2000))
def test_a_curve_stays_between_its_ends_and_reaches_them(start: float, end: float, rounds: int, now: int) -> None:
    low, high = sorted((start, end))
    for curve in (linear, cosine):
        value = curve(Progress(now), start=start, end=end, rounds=rounds)
        assert low <= value <= high or math.isclose(value, low, abs_tol=1e-9) or math.isclose(value, high)
        assert curve(Progress(rounds), start=start, end=end, rounds=rounds) == end
