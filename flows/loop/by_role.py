"""Waves of a round: asked for a plan until they have enough, with a rollout and a score for every role and use.

They are called as the wave is (`refill1`), of several uses by those too (`ask1-judge`), by the role if two have one.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradus.components.chosen import WaveConfig
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.errors import GateError
from gradus.data.lake.store import Ref
from gradus.data.records import JsonObject
from gradus.flows.recipe.config import Recipe, Recorded, stage_config
from gradus.tasks.runtime.calls import Outcome, Stages


def asked(
    wave: WaveConfig,
    ask: Callable[[int, Mapping[str, list[Ref]]], Outcome],
    index: int,
    calls: int,
    inputs: Mapping[str, list[Ref]],
) -> Outcome | None:
    """Return a wave that planned, after some calls in this round; None if its plan is empty, or `times` were made.

    Raise GateError if it asks for more after its last call and the recipe wants all of it.
    """
    over = calls == wave.times
    if index < wave.from_round or (over and wave.then == "learn"):
        return None
    step = ask(calls, inputs)
    if not step.summary.get("groups"):
        return None
    if over:
        reason = step.report.get("samples", [{}])[0].get("reason")
        raise GateError(
            f"the wave {wave.label} asks for more after its {wave.times} calls of round {index}: {reason}",
            hint='raise `times`, loosen the filters, or take what there is with then = "learn"',
        )
    return step


@dataclass(frozen=True)
class Answers:
    """Rollouts and scores by table: those that are learned from, and all."""

    learned: Mapping[str, Sequence[Ref]]
    every: Mapping[str, Sequence[Ref]]


@dataclass(frozen=True)
class ByRole:
    """Samples and judges the plans of waves in a round."""

    session: Stages
    recipe: Recipe
    models: Mapping[str, Ref]
    """Frozen models by role."""
    run: Callable[..., Outcome]
    """Function that runs a stage with the settings of this round."""
    problems: list[Ref]
    policy: Ref
    index: int
    recorded: Recorded
    """Guards that the run came to."""

    def answers(self, plan: Outcome, purpose: str, parents: list[Ref]) -> Answers:
        """Return rollouts and scores of a plan; `parents` are the rollouts that its rows build on."""
        planned = [(role, use) for role, uses in plan.summary.get("uses", {POLICY: [LEARN]}).items() for use in uses]
        roles_of = Counter(use for _, use in planned)
        rollouts: list[tuple[str, Ref]] = []
        scores: list[tuple[str, Ref]] = []
        for role, use in planned:
            named = use if roles_of[use] == 1 else f"{role}-{use}"
            called = purpose if len(planned) == 1 else f"{purpose}-{named}"
            sampled = self._sampled(role, use, plan.ref, called, parents)
            rollouts.append((use, sampled))
            scores += [(use, ref) for ref in self._judged(use, sampled, called)]
        tables = {"rollouts": rollouts, "scores": scores}
        return Answers(
            {name: [ref for use, ref in made if use == LEARN] for name, made in tables.items()},
            {name: [ref for _, ref in made] for name, made in tables.items()},
        )

    def _sampled(self, role: str, use: str, plan: Ref, purpose: str, parents: list[Ref]) -> Ref:
        inputs = {"plan": [plan], "problems": self.problems, "policy": [self.models.get(role, self.policy)]}
        inputs["parents"] = parents
        facts: JsonObject = {"round": self.index, **({} if use == LEARN else {"use": use})}
        if role == POLICY:
            return self.run("rollout", self.recipe.rollout, inputs, self.index, purpose, None, facts).ref
        facts |= {"role": role, **({"origin": role} if role in self.models else {})}
        settings = stage_config(self.recipe, f"roles.{role}", self.index, self.recipe.roles[role], self.recorded)
        return self.session.stage(
            "rollout", settings.rollout, inputs, round=self.index, purpose=purpose, facts=facts
        ).ref

    def _judged(self, use: str, rollouts: Ref, purpose: str) -> list[Ref]:
        """Return the scores of rollouts; nothing if the recipe does not judge their use."""
        inputs = {"rollouts": [rollouts], "problems": self.problems}
        if use == LEARN:
            return [self.run("score", self.recipe.score, inputs, self.index, purpose).ref]
        if use not in self.recipe.scores:
            return []
        settings = stage_config(self.recipe, f"score.{use}", self.index, self.recipe.scores[use], self.recorded)
        return [self.session.stage("score", settings, inputs, round=self.index, purpose=purpose).ref]
