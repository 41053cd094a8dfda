"""The rewards of a recipe: their specs for judge processes, which of them judge a row, and which decides `correct`.

`score.reward_by` names a column, `only` the values of it that a reward judges. A row with a gold answer of its own
(`own_gold`: a wave asks it something else than its problem) is judged by the rewards that read that column, and by none
of these the others; if no reward reads it, all judge both.

Light: nothing here loads a reward, so a command can ask before it starts a server or a worker.
"""

from collections.abc import Sequence
from typing import Any

from gradus.data.errors import UsageError
from gradus.data.lake.schema import OWN_GOLD
from gradus.models.rewards import RewardSpec, resolve
from gradus.models.rewards.base import Row
from gradus.models.rewards.combine import deciding_reward
from gradus.models.rewards.structured import parsed
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.runs.records import Coverage

NUM_NAMED = 5
"""Rollouts without a verdict that a report names."""

WAYS_TO_A_VERDICT = (
    'let the reward\'s function return verdicts ({"value": 0.7, "correct": True}), '
    "state a threshold (`correct_at`; in a recipe `score.correct_at`), or add a reward that judges correctness"
)
_KEY = "problem."
_OF_PROBLEM = ("domain", "source")
"""Columns of its problem that a row with a gold answer of its own keeps."""


def decider(config: ScoreConfig, specs: Sequence[RewardSpec]) -> int | None:
    """Index of the reward that decides `correct`; UsageError if a threshold is stated that it would never look at."""
    chosen = next((i for i, reward in enumerate(config.rewards) if reward.decides), None)
    found = deciding_reward(specs, chosen)
    if config.correct_at is not None and found is not None and specs[found].judges_correctness:
        raise UsageError(
            f"correct_at = {config.correct_at:g} has no effect: {specs[found].name} says itself what is correct",
            hint="leave correct_at out, or set `decides = true` at the graded reward",
        )
    return found


def refuse_without_verdicts(config: ScoreConfig, purpose: str, max_unjudged_frac: float = 0.0) -> None:
    """Raise UsageError if these rewards never have verdicts on correctness and `purpose` needs them.

    A user's function may return verdicts; the gate checks that after the first scoring.
    """
    specs = [resolve(reward.name, reward.settings) for reward in config.rewards]
    decides = decider(config, specs) is not None or config.correct_at is not None
    if decides or max_unjudged_frac >= 1:
        return
    names = ", ".join(reward.label for reward in config.rewards) or "no reward"
    raise UsageError(
        f"{purpose} needs to know which answers are correct, and the rewards cannot say so ({names})",
        hint="add one that judges correctness (math, numeric, exact), set `decides = true` at one of them, "
        "or state a threshold (`correct_at`)",
    )


def coverage(rollouts: int, unjudged: int, failed: int, first_unjudged: Sequence[str]) -> Coverage:
    """The part of a summary that says of how many rollouts the verdict is known, and names the first without one.

    `failed` of the unjudged have no reward either.
    """
    found: Coverage = {
        "rollouts": rollouts,
        "judged": rollouts - unjudged,
        "unjudged": unjudged,
        "failed": failed,
        "coverage": (rollouts - unjudged) / rollouts if rollouts else 1.0,
    }
    return {**found, "first_unjudged": list(first_unjudged)} if unjudged else found


def spec_of(reward: RewardConfig, max_chars: int = 0) -> RewardSpec:
    """Return the spec of a pinned reward; ValueError if it does not take its settings."""
    return resolve(
        reward.name,
        reward.settings,
        sha256=reward.source_sha256,
        modules=reward.modules,
        variables=reward.variables,
        isolated=reward.isolated,
        max_chars=max_chars,
    )


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


def deciding_among(specs: Sequence[RewardSpec], deciding: int | None, places: Sequence[int]) -> int | None:
    """Return the place of the reward that decides among those at some places, `deciding` before all."""
    if deciding in places:
        return deciding
    found = deciding_reward([specs[at] for at in places])
    return None if found is None else places[found]
