"""Schedules that follow what a training measures."""

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
