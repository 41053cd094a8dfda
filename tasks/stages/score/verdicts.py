"""Choice of the reward that decides `correct`, and the share of rollouts whose verdict is known.

Light: nothing here loads a reward, so a command can ask before it starts a server or a worker.
"""

from collections.abc import Sequence

from gradus.data.errors import UsageError
from gradus.models.rewards import RewardSpec, resolve
from gradus.models.rewards.combine import deciding_reward
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.runs.records import Coverage

NUM_NAMED = 5
"""Rollouts without a verdict that a report names."""

WAYS_TO_A_VERDICT = (
    'let the reward\'s function return verdicts ({"value": 0.7, "correct": True}), '
    "state a threshold (`correct_at`; in a recipe `score.correct_at`), or add a reward that judges correctness"
)


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
