"""`lab`: objectives of methods on the same stored rounds, as a Prefect flow; then a comparison of the better half.

The gradient of a method on a stored round at an age of its rows is a cell: one stage, which is reused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from gradus.data.curation.uses import LEARN
from gradus.data.errors import GradusError
from gradus.data.lake.manifest import json_digest
from gradus.flows import comparison
from gradus.flows.console.output import aside
from gradus.flows.laboratory.asked import LabAsked
from gradus.flows.laboratory.ready import LabReady, lab_ready
from gradus.flows.laboratory.stored import StoredRound, StoredRun
from gradus.flows.loop.comparing.budget import Budget
from gradus.flows.loop.inputs import start_of
from gradus.flows.loop.round.measures import Measures
from gradus.flows.loop.round.outcomes import Beginning, Memory, maybe, tables
from gradus.flows.loop.round.steps import Steps
from gradus.flows.loop.round.updates import Updates
from gradus.flows.recipe.config import lasting
from gradus.flows.recipe.course.phases import phase_of
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import form_of, gradus_flow
from gradus.tasks.config.learning import GradientConfig, UpdateConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.figures import Comparison
from gradus.tasks.inspect.laboratory import Cell, Failure, Laboratory, keep_laboratory, laboratory
from gradus.tasks.runtime.calls import Outcome, Stages

_HALVINGS = 2
"""Comparisons at half of the budget and at a quarter before the one at all of it."""


@gradus_flow("lab")
@form_of(LabAsked)
def lab(**given: Any) -> Laboratory:
    """Compute the gradient of each method on stored rounds of runs, without a token sampled.

    Of each: its angle to the others, signal to noise, clipped and masked tokens by the age of the rows, and by how much
    a step changes the log-probs of held-out right and wrong rollouts. It is a run of its own, `lab-DIGEST`, with its
    tables and its picture, in MLflow too. With `then` the better half is trained and compared.
    """
    asked = LabAsked(**given)
    ready = lab_ready(Home.from_environment(), asked)
    label_flow_run(f"lab {', '.join(run.folder.name for run in ready.runs)}", "lab")
    body = {  # the same methods on the same rounds are the same run
        "runs": [run.folder.name for run in ready.runs],
        "rounds": asked.rounds,
        "ages": [*ready.ages],
        "methods": {
            method.name: {run: json_digest(lasting(recipe))[:8] for run, recipe in method.recipes.items()}
            for method in ready.methods
        },
    }
    name = f"lab-{json_digest(body)[:8]}"
    with open_session(RunSpec(name=name, verb="lab", seed=ready.runs[0].recipe.seed, body=body)) as session:
        cells, failed = cells_of(session, ready)
        found = laboratory(session.store, cells, [*ready.failed, *failed], ready.remarks)
        keep_laboratory(found, session.journal.folder)
    if ready.budget is not None:
        found["comparisons"] = _compared(found, ready, ready.budget)
    return found


def _compared(found: Laboratory, ready: LabReady, budget: Budget) -> list[Comparison]:
    """Train the better half by gain, then halve by pass@1 at each doubling of the budget (successive halving).

    Jamieson and Talwalkar 2016 (arXiv 1502.07943). The run's own recipe stays; trainings continue those before.
    """
    first, *others = sorted(found["methods"], key=lambda each: (each["method"] != "none", each["rank"]))
    left = [each["method"] for each in others if not each["same_as"]]
    given = {each.name: each.given for each in ready.methods}
    results = list[Comparison]()
    if not left:
        aside("every method has the gradient of the run's own: there is nothing to compare")
    for halving in range(_HALVINGS, -1, -1):
        left = left[: ceil(len(left) / 2)]
        if not left:
            break
        amount = max(1, budget.amount // 2**halving)
        methods = [first["method"], *left]
        aside(f"comparing {', '.join(methods)} with {amount:,} {budget.unit} each")
        compared = comparison.compare(
            recipes=[run.folder.name for run in ready.runs],
            method=[given[name] for name in methods],
            seeds=ready.asked.seeds,
            budget=f"{budget.unit}={amount}",
            set=ready.asked.set,
        )
        results.append(compared)
        left = _by_result(compared, left)
    return results


def _by_result(compared: Comparison, methods: Sequence[str]) -> list[str]:
    """Return methods in the order of pass@1 after training; those that failed are left out."""
    after = {each["method"].partition("+")[2] or "none": each["after"]["value"] for each in compared["methods"]}
    return sorted((name for name in methods if name in after), key=lambda name: -after[name])


def cells_of(session: Stages, ready: LabReady) -> tuple[list[Cell], list[Failure]]:
    """Return cells, and methods that failed, without cells; methods come last: a worker keeps policy and rows."""
    found, failed = list[Cell](), dict[str, Failure]()
    starts = dict[str, Beginning]()
    for run, stored, age in _places(ready):
        for method in ready.methods:
            if method.name in failed:
                continue
            try:
                recipe = method.recipes[run.folder.name]
                key = recipe.model_dump_json(exclude={"name", "update"})
                if key not in starts:
                    starts[key] = start_of(session, recipe)
                steps = Steps(session, recipe, starts[key], past=run.past)
                place, first = phase_of(recipe, stored.index, run.past) or (len(recipe.phase) - 1, 1)
                outcome = _gradient(steps.of_phase(place, first), stored, age, method.name)
            except GradusError as error:
                failed[method.name] = {"method": method.name, "reason": str(error)}
                session.say(f"{method.name} is left out: {error}")
                continue
            found.append(
                {
                    "method": method.name,
                    "run": run.folder.name,
                    "round": stored.index,
                    "age": age,
                    "artifact": str(outcome.ref),
                    "seconds": outcome.seconds,
                    "metrics": dict(outcome.report.get("metrics", {})),
                }
            )
    return [cell for cell in found if cell["method"] not in failed], list(failed.values())


def _places(ready: LabReady) -> Iterator[tuple[StoredRun, StoredRound, int]]:
    for run in ready.runs:
        for stored in run.rounds(ready.asked.rounds):
            for age in ready.ages:
                if age < len(stored.policies):
                    yield run, stored, age


def _gradient(steps: Steps, stored: StoredRound, age: int, name: str) -> Outcome:
    """Run the stage `gradient` for the update that a method would make of a round."""
    sampler = stored.policies[0]
    roles = {**steps.start.roles, **stored.roles}
    now = steps.round(stored.index, sampler, Memory(roles=roles))
    config = now.settings("update", steps.recipe.update)
    columns = partial(Measures(now, steps.known).beside, plans=stored.plans, made=stored.made)
    seen = {"plan": stored.plans, **tables(stored.made)}
    now = replace(now, start=replace(steps.start, problems=stored.problems))  # those that its rows were drawn from
    updates = Updates(now, seen, columns, last=False)
    inputs = {**tables(stored.made, use=LEARN), "policy": [stored.policies[age]]}
    if age:
        inputs["sampler"] = [sampler]
    if config.needs_teacher:
        inputs["teacher"] = maybe(steps.start.teacher)
    if config.teachers:
        inputs["teachers"] = [roles.get(name, sampler) for name in config.teachers]
    if config.loads_reference:
        inputs["reference"] = [steps.start.policy]
    inputs = {**updates.with_batch(config, inputs, name), **stored.held_out}
    purpose = f"{name}-age{age}" if age else name
    return now.run("gradient", _settings(config, age), inputs, purpose)


def _settings(config: UpdateConfig, age: int) -> GradientConfig:
    """The settings of an update as those of its gradient; limits that only refuse an update are lifted."""
    body = config.with_batch.model_dump(mode="json")
    lifted = {"max_age": max(age, config.max_age), "max_zero_std_frac": 1.0, "launch": {}, "between_updates": "device"}
    return GradientConfig.model_validate({**body, **lifted})
