"""Schedules over rounds, sampled tokens or optimiser steps."""

import bisect
import math
from typing import Annotated

from annotated_types import Ge, MinLen

from gradus.components import component
from gradus.data.schedules.progress import Progress, ScheduleError


@component("schedule")
def linear(
    now: Progress,
    *,
    start: float,
    end: float,
    rounds: Annotated[int, Ge(0)] = 0,
    tokens: Annotated[int, Ge(0)] = 0,
    optimizer_steps: Annotated[int, Ge(0)] = 0,
) -> float:
    """Go from `start` in the first round straight to `end` in round `rounds`, or after `tokens` or `optimizer_steps`.

    Args:
        start: Number of the first round.
        end: Number of the last round, and of those after it.
        rounds: Round that has `end`.
        tokens: Sampled tokens after which a round has `end`, in place of `rounds`.
        optimizer_steps: Optimiser steps after which a round has `end`, in place of `rounds`.
    """
    share = _share(now, rounds, tokens, optimizer_steps)
    return (1 - share) * start + share * end


@component("schedule", paper="arXiv 1608.03983")
def cosine(
    now: Progress,
    *,
    start: float,
    end: float,
    rounds: Annotated[int, Ge(0)] = 0,
    tokens: Annotated[int, Ge(0)] = 0,
    optimizer_steps: Annotated[int, Ge(0)] = 0,
) -> float:
    """Go from `start` to `end` along half a cosine, flat at both ends: end + (start - end) (1 + cos(pi s)) / 2.

    SGDR without restarts (arXiv 1608.03983), where s is the share of the way, as that of `linear`.

    Args:
        start: Number of the first round.
        end: Number of the last round, and of those after it.
        rounds: Round that has `end`.
        tokens: Sampled tokens after which a round has `end`, in place of `rounds`.
        optimizer_steps: Optimiser steps after which a round has `end`, in place of `rounds`.
    """
    left = (1 + math.cos(math.pi * _share(now, rounds, tokens, optimizer_steps))) / 2
    return left * start + (1 - left) * end


@component("schedule")
def steps(now: Progress, *, values: Annotated[tuple[float, ...], MinLen(1)], at: tuple[int, ...] = ()) -> float:
    """Hold the first of `values`, and from each round of `at` on the next one.

    Args:
        values: Numbers, one more than `at` has rounds.
        at: Rounds, ascending, from which the second number holds, the third, and so on.
    """
    if len(values) != len(at) + 1 or list(at) != sorted(set(at)):
        raise ScheduleError(
            f"it has {len(values)} values and {len(at)} rounds: `at` is ascending, one less than values"
        )
    return values[bisect.bisect_right(at, now.round)]


def _share(now: Progress, rounds: int, tokens: int, steps: int) -> float:
    """Return the share of the way, within 0 and 1."""
    if sum(length > 0 for length in (rounds, tokens, steps)) != 1:
        raise ScheduleError("it needs its length: either rounds or tokens or optimizer_steps")
    if rounds:
        return min(1.0, (now.round - 1) / max(1, rounds - 1)) if rounds > 1 else 1.0
    return min(1.0, now.tokens / tokens if tokens else now.step / steps)
