"""Inputs of a wave that takes up rollouts of earlier rounds."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from gradus.data.lake.store import Ref
from gradus.tasks.config.waves import PlanningConfig


class Round(Protocol):
    """Rollouts of a round and their scores."""

    @property
    def rollouts(self) -> list[Ref]:
        """Artifacts of its waves."""
        ...

    @property
    def scores(self) -> list[Ref]:
        """The scores of each."""
        ...


Rounds: TypeAlias = Sequence[Round]


def stored_inputs(config: PlanningConfig, policy: Ref, earlier: Rounds) -> dict[str, list[Ref]]:
    """Return the rollouts of the last `max_age` rounds, their scores, and the policy from which age is counted."""
    if not config.wave.reads_stored:
        return {"stored_rollouts": []}
    rounds = earlier[max(0, len(earlier) - config.max_age) :]
    return {
        "stored_rollouts": [ref for each in rounds for ref in each.rollouts],
        "stored_scores": [ref for each in rounds for ref in each.scores],
        "sampler": [policy],
    }
