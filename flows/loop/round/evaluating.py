"""Evaluation of a policy on a suite: its problems sampled, then its waves and shapes as those of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gradus.data.curation.uses import LEARN
from gradus.data.lake.store import Ref, Store
from gradus.flows.loop.round.asking import Asking
from gradus.flows.loop.round.by_role import tables
from gradus.flows.loop.round.memory import Memory, maybe
from gradus.flows.loop.round.steps import Steps
from gradus.flows.recipe.course.by_round import recipe_of_suite, suite_shaping
from gradus.flows.recipe.course.past import NOTHING
from gradus.flows.recipe.suites import Suite
from gradus.tasks.runtime.calls import Call, Outcome, Stages


def evaluate(
    steps: Steps, suite: Suite, policy: Ref, index: int, baseline: Ref | None, roles: Mapping[str, Ref]
) -> Outcome:
    """Return the evaluation of a round's policy on a suite, with the same seeds every time.

    `baseline` is that of the starting policy; `roles` are the models of roles after the round.
    """
    recipe = recipe_of_suite(steps.recipe, suite, steps.past)
    session = OfSuite(steps.session, suite, steps.recipe.evaluate.purpose(suite))
    start = replace(steps.start, problems=steps.start.suites[suite.name])
    own = replace(steps, session=session, recipe=recipe, start=start, past=NOTHING, hinted=None)
    known = {"problems": [start.problems]}
    plan = session.stage(Call("curate", recipe.curate, known, round=index)).ref
    first = own.sample_and_score(plan, known["problems"], policy, index)
    memory = Memory(roles=roles)
    asking = Asking(own.by_role(index, policy, memory), own.measures(index, policy, memory), known)
    plans, made = asking.rows(enumerate(suite.waves, start=1), plan, first)
    inputs = {**known, **tables(made, use=LEARN), "baseline": maybe(baseline)}
    if suite.is_shaped:
        shaping = suite_shaping(suite)
        seen = {**known, "plan": plans, **tables(made)}
        seen["trackers"] = asking.measures.beside(shaping.tracked, plans, made)
        inputs["batch"] = [session.stage(Call("shape", shaping, seen, round=index)).ref]
    return own.run("evaluate", suite.report, inputs, index, facts={"suite": suite.name})


@dataclass(frozen=True)
class OfSuite:
    """Runs the stages of an evaluation under its name, with the seed of its suite, independent of the round.

    Purposes are `eval` or `eval-SUITE` and, of waves and measures, `eval-SUITE-rethink1`.
    """

    session: Stages
    suite: Suite
    purpose: str
    """The purpose of the stages that every evaluation has."""

    @property
    def store(self) -> Store:
        """The store of the artifacts."""
        return self.session.store

    def stage(self, call: Call) -> Outcome:
        """Return the outcome of one stage."""
        purpose = self.purpose if call.purpose == "train" else f"eval-{self.suite.name}-{call.purpose}"
        own = {key: fact for key, fact in call.facts.items() if key != "round"}
        seed = self.suite.seed if call.seed is None else call.seed
        return self.session.stage(replace(call, purpose=purpose, facts=own, seed=seed))

    def halt(self) -> None:
        """End what other threads have under way."""
        self.session.halt()

    def say(self, text: str) -> None:
        """Show a sentence at the terminal."""
        self.session.say(text)

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None:
        """Remove weights and train states of the checkpoints of all other rounds."""
        self.session.make_room(made, weights, states)
