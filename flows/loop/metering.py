"""A session that counts what a training spends, for a budget. Does not import Prefect."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradus.components.settings import Config
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Json
from gradus.flows.recipe.budget import Budget
from gradus.tasks.runs.spending import ComputedSeconds, is_evaluation, sampled_tokens
from gradus.tasks.runtime.calls import Inputs, Outcome, Stages


@dataclass
class Metered:
    """The session of a training with a budget: passes every stage on, and counts tokens and seconds.

    Both are of all stages but those of evaluations; one that is reused counts as if it had been computed.
    """

    session: Stages
    computed: ComputedSeconds
    tokens: int = 0
    """Completion tokens sampled."""
    seconds: float = 0.0
    """Seconds of stages."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def store(self) -> Store:
        """The store of the artifacts."""
        return self.session.store

    def stage(
        self,
        name: str,
        config: Config,
        inputs: Inputs,
        *,
        round: int = 0,
        purpose: str = "train",
        seed: int | None = None,
        facts: Mapping[str, Json] = {},
    ) -> Outcome:
        """Return the outcome of one stage."""
        outcome = self.session.stage(name, config, inputs, round=round, purpose=purpose, seed=seed, facts=facts)
        if not is_evaluation(purpose):
            seconds = self.computed.of(str(outcome.ref)) if outcome.reused else outcome.seconds
            with self._lock:  # two threads of a run that overlaps
                self.tokens += sampled_tokens(name, outcome.summary)
                self.seconds += seconds
        return outcome

    def halt(self) -> None:
        """End what other threads have under way."""
        self.session.halt()

    def say(self, text: str) -> None:
        """Show a sentence at the terminal."""
        self.session.say(text)

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None:
        """Let the checkpoints of other rounds than these lose their weights, and their train states."""
        self.session.make_room(made, weights, states)

    def has_spent(self, budget: Budget, rounds: int) -> bool:
        """Return whether a training ends after a round, by what it has spent by then."""
        return budget.is_reached(rounds, self.tokens, self.seconds)
