"""One round, or an evaluation after it: what all its stages have, and its plans, sampled and judged.

A plan of a wave has a rollout and a score for every role and use. Their purpose is the wave's (`refill1`), with the use
if there are several (`ask1-judge`), and the role if two share it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gradus.components.settings import Config
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.lake.store import Ref
from gradus.data.records import Json, JsonObject
from gradus.flows.loop.round.outcomes import Beginning, Memory, Sampled
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import stage_config
from gradus.flows.recipe.course.past import Past
from gradus.tasks.runs.history import sampled_tokens
from gradus.tasks.runtime.calls import Call, Outcome, Stages

C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Round:
    """Runs the stages of one round, and samples and judges its plans."""

    session: Stages
    recipe: Recipe
    start: Beginning
    policy: Ref
    """The policy that samples."""
    memory: Memory
    """As it was before the round, with the models of roles."""
    index: int
    past: Past
    """The past of the run."""

    @property
    def problems(self) -> list[Ref]:
        """The problems that are drawn from."""
        return [self.start.problems]

    def settings(self, stage: str, base: C) -> C:
        """Return the settings of a stage in the round, with the changes of guards that it came to."""
        return stage_config(self.recipe, stage, self.index, base, self.past)

    def run(
        self,
        name: str,
        config: Config,
        inputs: Mapping[str, Sequence[Ref]],
        purpose: str = "train",
        facts: Mapping[str, Json] = {},
    ) -> Outcome:
        """Run one stage with settings of this round."""
        call = Call(name, config, inputs, round=self.index, purpose=purpose, facts=facts)
        return self.session.stage(self.adapted(call))

    def adapted(self, call: Call) -> Call:
        """Return a call as it is made here."""
        return call

    def answers(self, plan: Outcome, purpose: str, parents: Sequence[Ref]) -> list[Sampled]:
        """Return rollouts and scores of a wave's plan; `parents` are the rollouts that its rows build on."""
        planned = [(role, use) for role, uses in plan.summary.get("uses", {POLICY: [LEARN]}).items() for use in uses]
        roles_of = Counter(use for _, use in planned)
        found: list[Sampled] = []
        for role, use in planned:
            named = use if roles_of[use] == 1 else f"{role}-{use}"
            called = purpose if len(planned) == 1 else f"{purpose}-{named}"
            found.append(self.sampled(plan.ref, called, role, use, parents))
        return found

    def sampled(
        self, plan: Ref, purpose: str = "train", role: str = POLICY, use: str = LEARN, parents: Sequence[Ref] = ()
    ) -> Sampled:
        """Return the rollouts of a plan by one role for one use; with scores if the recipe judges that use."""
        model = self.memory.roles.get(role, self.policy)
        inputs = {"plan": [plan], "problems": self.problems, "policy": [model], "parents": parents}
        facts: JsonObject = {} if purpose == "profile" else {"round": self.index}
        facts |= {} if use == LEARN else {"use": use}
        if role == POLICY:
            settings = self.settings("rollout", self.recipe.rollout)
        else:
            settings = self.settings(f"roles.{role}", self.recipe.roles[role]).rollout
            facts |= {"role": role, **({"origin": role} if role in self.memory.roles else {})}
        sampled = self.run("rollout", settings, inputs, purpose, facts)
        steps = [sampled, *self._judged(use, sampled.ref, purpose)]
        metrics = {name: value for each in steps for name, value in each.report.get("metrics", {}).items()}
        tokens, num_rollouts = sampled_tokens(sampled.stage, sampled.summary), sampled.summary.get("rows", 0)
        return Sampled(role, use, sampled.ref, [each.ref for each in steps[1:]], tokens, num_rollouts, metrics)

    def _judged(self, use: str, rollouts: Ref, purpose: str) -> list[Outcome]:
        """Score rollouts; return nothing if the recipe does not judge their use."""
        if use == LEARN:
            settings = self.settings("score", self.recipe.score)
        elif use in self.recipe.scores:
            settings = self.settings(f"score.{use}", self.recipe.scores[use])
        else:
            return []
        return [self.run("score", settings, {"rollouts": [rollouts], "problems": self.problems}, purpose)]
