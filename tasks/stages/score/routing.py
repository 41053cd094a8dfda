"""Rewards by kind of problem: `score.reward_by` names a column, `only` the values of it that a reward judges.

A row with a gold answer of its own (`own_gold`: a wave asks it something else than its problem) is judged by the
rewards that read that column, and by none of these the others; if no reward reads it, all judge both.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gradus.data.lake.schema import OWN_GOLD
from gradus.models.rewards import RewardSpec
from gradus.models.rewards.base import Row
from gradus.models.rewards.combine import deciding_reward
from gradus.models.rewards.structured import parsed
from gradus.tasks.config.score import ScoreConfig

_KEY = "problem."
_OF_PROBLEM = ("domain", "source")
"""Columns of its problem that a row with a gold answer of its own keeps."""


def columns_of(config: ScoreConfig) -> tuple[str, ...]:
    """Return the column of problems that the routing reads; a key of `extra` is written problem.KEY."""
    return () if not config.reward_by else ("extra" if config.reward_by.startswith(_KEY) else config.reward_by,)


def kind_of(row: Row, config: ScoreConfig) -> str:
    """Return the kind of a row's problem; empty if it has none, or nothing is routed."""
    name = config.reward_by
    if not name.startswith(_KEY):
        return str(row.get(name, ""))
    extra = parsed(row.get("extra") or "")
    value = extra.get(name.removeprefix(_KEY)) if isinstance(extra, dict) else None
    return "" if value is None else str(value)


def beside_problem(row: Row, problem: Row) -> dict[str, Any]:
    """Return a row with the columns of its problem; with a gold of its own it has that as its answer, and no other."""
    if OWN_GOLD not in row:
        return {**row, **problem}
    return {**row, **{name: problem[name] for name in _OF_PROBLEM if name in problem}, "answer": row[OWN_GOLD]}


def judging(config: ScoreConfig, specs: Sequence[RewardSpec], row: Row) -> tuple[int, ...]:
    """Return the places of the rewards that judge a row."""
    kind = kind_of(row, config)
    places = [at for at, reward in enumerate(config.rewards) if not reward.only or kind in reward.only]
    reading = tuple(at for at in places if OWN_GOLD in specs[at].columns)
    others = tuple(at for at in places if at not in reading)
    return (reading or others) if OWN_GOLD in row else (others or reading)


def deciders(specs: Sequence[RewardSpec], deciding: int | None) -> Callable[[tuple[int, ...]], int | None]:
    """Return a function from places of rewards to that of the one that decides among them, `deciding` before all."""

    @cache
    def among(places: tuple[int, ...]) -> int | None:
        if deciding in places:
            return deciding
        found = deciding_reward([specs[at] for at in places])
        return None if found is None else places[found]

    return among
