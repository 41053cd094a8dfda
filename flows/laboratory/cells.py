"""The gradient of each method on each stored round, at each age of its rows: one stage a cell, which is reused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gradus.data.curation.uses import LEARN
from gradus.data.errors import GradusError
from gradus.data.lake.store import Ref
from gradus.flows.laboratory.stored import StoredRound, StoredRun
from gradus.flows.loop.inputs import start_of
from gradus.flows.loop.round.by_role import tables
from gradus.flows.loop.round.memory import Memory, maybe
from gradus.flows.loop.round.outcomes import Beginning
from gradus.flows.loop.round.steps import Steps
from gradus.flows.loop.round.updates import Updates
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.phases import phase_of
from gradus.tasks.config.learning import GradientConfig, UpdateConfig
from gradus.tasks.inspect.laboratory import Cell, Failure
from gradus.tasks.runtime.calls import Call, Outcome, Stages


@dataclass(frozen=True)
class Method:
    """A method laid over each run, by name."""

    name: str
    recipes: Mapping[str, Recipe]
    """By the name of the run."""
    given: str
    """Its name or file, as it was given."""


def cells_of(
    session: Stages, runs: Sequence[StoredRun], methods: Sequence[Method], num_rounds: int, ages: Sequence[int]
) -> tuple[list[Cell], list[Failure]]:
    """Return the cells of all methods, and those methods that could not be computed, whose cells are left out.

    Rounds come first and methods last, so that a worker keeps policy and rows.
    """
    found, failed = list[Cell](), dict[str, Failure]()
    starts = dict[str, Beginning]()
    for run, stored, age, policy in _places(runs, num_rounds, ages):
        for method in methods:
            if method.name in failed:
                continue
            try:
                recipe = method.recipes[stored.run]
                key = recipe.model_dump_json(exclude={"name", "update"})
                if key not in starts:
                    starts[key] = start_of(session, recipe)
                steps = Steps(session, recipe, starts[key], past=run.past)
                outcome = _Laid(steps, stored, policy, age).gradient(method.name)
            except GradusError as error:
                failed[method.name] = {"method": method.name, "reason": str(error)}
                session.say(f"{method.name} is left out: {error}")
                continue
            found.append(_cell(method.name, stored, age, outcome))
    return [cell for cell in found if cell["method"] not in failed], list(failed.values())


def _places(
    runs: Sequence[StoredRun], num_rounds: int, ages: Sequence[int]
) -> Iterator[tuple[StoredRun, StoredRound, int, Ref]]:
    for run in runs:
        for stored in run.rounds(num_rounds):
            for age in ages:
                if age <= len(stored.later):
                    yield run, stored, age, (stored.policy, *stored.later)[age]


def _cell(method: str, stored: StoredRound, age: int, outcome: Outcome) -> Cell:
    return {
        "method": method,
        "run": stored.run,
        "round": stored.index,
        "age": age,
        "artifact": str(outcome.ref),
        "seconds": outcome.seconds,
        "metrics": dict(outcome.report.get("metrics", {})),
    }


@dataclass(frozen=True)
class _Laid:
    """A method laid over a stored round, in the place of its update."""

    whole: Steps
    stored: StoredRound
    policy: Ref
    age: int

    def gradient(self, name: str) -> Outcome:
        """Run the stage `gradient` for the update that the method would make of the round."""
        steps, stored, memory = self._steps(), self.stored, Memory()
        config = steps.settings("update", stored.index, steps.recipe.update)
        measures = steps.measures(stored.index, stored.policy, memory)
        columns = partial(measures.beside, plans=stored.plans, made=stored.made)
        seen = {"plan": stored.plans, **tables(stored.made)}
        updates = Updates(
            steps.session, steps.recipe, [stored.problems], stored.index, steps.past, memory, seen, columns, False
        )
        inputs = {**tables(stored.made, use=LEARN), "policy": [self.policy], **self._models(steps, config)}
        return steps.session.stage(
            Call(
                "gradient",
                _settings(config, self.age),
                {**updates.with_batch(config, inputs, name), **stored.held_out},
                round=stored.index,
                purpose=f"{name}-age{self.age}" if self.age else name,
            )
        )

    def _steps(self) -> Steps:
        recipe = self.whole.recipe
        if not recipe.phase:
            return self.whole
        place, first = phase_of(recipe, self.stored.index, self.whole.past) or (len(recipe.phase) - 1, 1)
        return self.whole.of_phase(place, first)

    def _models(self, steps: Steps, config: UpdateConfig) -> dict[str, list[Ref]]:
        found = {"sampler": [self.stored.policy]} if self.age else {}
        if config.needs_teacher:
            found["teacher"] = maybe(steps.start.teacher)
        if config.teachers:
            found["teachers"] = [steps.start.roles.get(name, self.stored.policy) for name in config.teachers]
        if config.loads_reference:
            found["reference"] = [steps.start.policy]
        return found


def _settings(config: UpdateConfig, age: int) -> GradientConfig:
    """The settings of an update as those of its gradient; limits that only refuse an update are lifted."""
    body = config.with_batch.model_dump(mode="json")
    lifted = {"max_age": max(age, config.max_age), "max_zero_std_frac": 1.0, "launch": {}, "between_updates": "device"}
    return GradientConfig.model_validate({**body, **lifted})
