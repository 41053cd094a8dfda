"""Rollouts of a wave's plan role by role, and their scores use by use.

A plan for the policy to learn from alone has one rollout and one score, called as the wave is (`refill1`). Of several
roles, or uses, the stages are called by them too: `ask1-judge`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradus.components.settings import Config
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.lake.store import Ref
from gradus.data.records import Json, JsonObject
from gradus.flows.recipe.config import Recipe
from gradus.tasks.runtime.calls import Outcome, Stages


class Run(Protocol):
    """Run one stage with the settings of this round."""

    def __call__(
        self,
        name: str,
        base: Config,
        inputs: dict[str, list[Ref]],
        index: int,
        purpose: str = "train",
        seed: int | None = None,
        facts: Mapping[str, Json] = {},
    ) -> Outcome:
        """Return its outcome."""
        ...


@dataclass(frozen=True)
class Answers:
    """Rollouts and scores by table: those of rows that are learned from, and all."""

    learned: Mapping[str, Sequence[Ref]]
    every: Mapping[str, Sequence[Ref]]


@dataclass(frozen=True)
class ByRole:
    """Who samples and judges the plans of waves in a round, and from which policy."""

    session: Stages
    recipe: Recipe
    models: Mapping[str, Ref]
    """Frozen models by role."""
    run: Run
    problems: list[Ref]
    policy: Ref
    index: int

    def answers(self, plan: Outcome, purpose: str) -> Answers:
        """Return rollouts and scores of a plan."""
        uses = plan.summary.get("uses", {POLICY: [LEARN]})
        by_use: dict[str, list[Ref]] = {}
        for role, of_role in uses.items():
            rollouts = self._sampled(role, plan.ref, purpose if len(uses) == 1 else f"{purpose}-{role}")
            for use in of_role:
                by_use.setdefault(use, []).append(rollouts)
        judged = {
            use: self._judged(use, rollouts, purpose if len(by_use) == 1 else f"{purpose}-{use}")
            for use, rollouts in by_use.items()
        }
        every = list(dict.fromkeys(ref for rollouts in by_use.values() for ref in rollouts))
        return Answers(
            {"rollouts": by_use.get(LEARN, []), "scores": judged.get(LEARN, [])},
            {"rollouts": every, "scores": [ref for refs in judged.values() for ref in refs]},
        )

    def _sampled(self, role: str, plan: Ref, purpose: str) -> Ref:
        inputs = {"plan": [plan], "problems": self.problems, "policy": [self.models.get(role, self.policy)]}
        facts: JsonObject = {"round": self.index}
        if role == POLICY:
            return self.run("rollout", self.recipe.rollout, inputs, self.index, purpose, None, facts).ref
        facts |= {"role": role, **({"origin": role} if role in self.models else {})}
        settings = self.recipe.roles[role].rollout
        return self.session.stage("rollout", settings, inputs, round=self.index, purpose=purpose, facts=facts).ref

    def _judged(self, use: str, rollouts: list[Ref], purpose: str) -> list[Ref]:
        """Return the scores of rows of one use; nothing if the recipe does not judge them."""
        inputs = {"rollouts": rollouts, "problems": self.problems}
        if use == LEARN:
            return [self.run("score", self.recipe.score, inputs, self.index, purpose).ref]
        if use not in self.recipe.scores:
            return []
        settings, facts = self.recipe.scores[use], {"use": use}
        return [self.session.stage("score", settings, inputs, round=self.index, purpose=purpose, facts=facts).ref]
