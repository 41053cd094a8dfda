"""Plans of waves, sampled and judged by a rollout and a score for every role and use.

Their purpose is the wave's (`refill1`), with the use if there are several (`ask1-judge`), and the role if two share it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.lake.store import Ref
from gradus.data.records import JsonObject
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import stage_config
from gradus.flows.recipe.course.past import Past
from gradus.tasks.runs.history import sampled_tokens
from gradus.tasks.runtime.calls import Call, Outcome, Stages


@dataclass(frozen=True)
class Sampled:
    """Rollouts of one role for one use, and their scores if they are judged."""

    role: str
    use: str
    rollouts: Ref
    scores: Sequence[Ref]
    tokens: int
    """Completion tokens that were generated."""
    num_rollouts: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Figures of both stages; of the first rollouts of a round alone."""


def tables(made: Sequence[Sampled], *, role: str = "", use: str = "") -> dict[str, list[Ref]]:
    """Return rollouts and scores by table: all, or those of a role or a use."""
    kept = [each for each in made if role in ("", each.role) and use in ("", each.use)]
    return {"rollouts": [each.rollouts for each in kept], "scores": [ref for each in kept for ref in each.scores]}


@dataclass(frozen=True)
class ByRole:
    """Samples and judges the plans of waves in a round."""

    session: Stages
    recipe: Recipe
    models: Mapping[str, Ref]
    """Models of roles, as of this round."""
    run: Callable[..., Outcome]
    """Function that runs a stage with the settings of this round."""
    problems: list[Ref]
    policy: Ref
    index: int
    past: Past
    """The past of the run."""

    def answers(self, plan: Outcome, purpose: str, parents: list[Ref]) -> list[Sampled]:
        """Return rollouts and scores of a plan; `parents` are the rollouts that its rows build on."""
        planned = [(role, use) for role, uses in plan.summary.get("uses", {POLICY: [LEARN]}).items() for use in uses]
        roles_of = Counter(use for _, use in planned)
        found: list[Sampled] = []
        for role, use in planned:
            named = use if roles_of[use] == 1 else f"{role}-{use}"
            called = purpose if len(planned) == 1 else f"{purpose}-{named}"
            sampled = self._sampled(role, use, plan.ref, called, parents)
            tokens, judged = sampled_tokens(sampled.stage, sampled.summary), self._judged(use, sampled.ref, called)
            found.append(Sampled(role, use, sampled.ref, judged, tokens, sampled.summary.get("rows", 0)))
        return found

    def _sampled(self, role: str, use: str, plan: Ref, purpose: str, parents: list[Ref]) -> Outcome:
        inputs = {"plan": [plan], "problems": self.problems, "policy": [self.models.get(role, self.policy)]}
        inputs["parents"] = parents
        facts: JsonObject = {"round": self.index, **({} if use == LEARN else {"use": use})}
        if role == POLICY:
            return self.run("rollout", self.recipe.rollout, inputs, self.index, purpose, facts)
        facts |= {"role": role, **({"origin": role} if role in self.models else {})}
        settings = stage_config(self.recipe, f"roles.{role}", self.index, self.recipe.roles[role], self.past).rollout
        return self.session.stage(Call("rollout", settings, inputs, round=self.index, purpose=purpose, facts=facts))

    def _judged(self, use: str, rollouts: Ref, purpose: str) -> list[Ref]:
        """Return the scores of rollouts; nothing if the recipe does not judge their use."""
        inputs = {"rollouts": [rollouts], "problems": self.problems}
        if use == LEARN:
            return [self.run("score", self.recipe.score, inputs, self.index, purpose).ref]
        if use not in self.recipe.scores:
            return []
        settings = stage_config(self.recipe, f"score.{use}", self.index, self.recipe.scores[use], self.past)
        return [self.session.stage(Call("score", settings, inputs, round=self.index, purpose=purpose)).ref]
