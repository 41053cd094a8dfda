"""Schedules that follow what a training measures."""

from typing import Annotated

from annotated_types import Gt

from gradus.components import component
from gradus.data.schedules.progress import Progress, ScheduleError


@component("schedule")
def by_metric(now: Progress, *, metric: str, low: float, high: float, start: float, end: float) -> float:
    """Follow the newest value of a metric: `start` at `low` and below, `end` at `high` and above, straight between.

    Args:
        metric: Metric of a round, such as policy/entropy or reward/mean.
        low: Value of the metric that stands for `start`; so does a metric without a value, before the first round.
        high: Value of the metric, above `low`, that stands for `end`.
        start: Number at `low`.
        end: Number at `high`.
    """
    if low >= high:
        raise ScheduleError(f"low = {low:g} is not below high = {high:g}; swap start and end for a falling number")
    value = now.newest(metric)
    share = 0.0 if value is None else min(1.0, max(0.0, (value - low) / (high - low)))
    return (1 - share) * start + share * end


@component("schedule")
def history_mean(now: Progress, *, metric: str, start: float = 0.0, least: float = 0.0) -> float:
    """Return the mean of a metric over all rounds before, at least `least`; `start` before the first.

    Args:
        metric: Metric of a round, such as policy/entropy.
        start: Number of a round without a round before it that has the metric.
        least: Lower bound of the mean.
    """
    values = now.metrics.get(metric, ())
    return max(least, sum(values) / len(values)) if values else start


@component("schedule", paper="arXiv 2505.22312")
def by_target(
    now: Progress,
    *,
    metric: str,
    target: float,
    step: Annotated[float, Gt(0.0)],
    start: float = 0.0,
    greatest: float = 1.0,
    gated: bool = True,
) -> float:
    """Raise a number by `step` after each round with the metric at most `target`, lower it after each of the others.

    The adaptive entropy coefficient of Skywork-OR1, arXiv 2505.22312: never below 0, and 0 while the metric is above
    the target (`gated`). Deviation: a bound above.

    Args:
        metric: Metric of a round, such as policy/entropy.
        target: Value that the metric shall not fall below.
        step: Change of the number a round.
        start: Number of the first round.
        greatest: Upper bound of the number.
        gated: Return 0 while the newest value is above the target. The number itself is changed further.
    """
    values, found = now.metrics.get(metric, ()), start
    for value in values:
        found = min(greatest, max(0.0, found + (step if value <= target else -step)))
    return 0.0 if gated and values and values[-1] > target else found
