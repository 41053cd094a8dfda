"""`compare`: several methods under one budget and the same seeds, as a Prefect flow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradus.data.errors import BadInputError, GateError, GradusError, PrunedError, StageError
from gradus.data.lake.manifest import json_digest
from gradus.flows.console.output import aside
from gradus.flows.loop.comparing.budget import Asked, Budget
from gradus.flows.loop.comparing.compared import compared_trainings
from gradus.flows.loop.comparing.methods import Checked, Grid, Tuning, checked, read_tuned
from gradus.flows.loop.comparing.plan import keep_plan
from gradus.flows.loop.variants import Variant
from gradus.flows.runs import train_flow
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import form_of, gradus_flow, say_started
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.figures import Comparison, keep_comparison
from gradus.tasks.inspect.comparing.planning import Tuned, TuningRecord
from gradus.tasks.inspect.comparing.report import Terms
from gradus.tasks.runs.history import AGAIN
from gradus.tasks.runtime.supervise import keeping_workers

_NAME_CHARS = 120


@gradus_flow("compare")
@form_of(Asked)
def compare(**given: Any) -> Comparison:
    """Train methods under the same budget and seeds, and judge each pair: better, worse, equivalent or undecided.

    What methods share (problems, profile, hints, first evaluation) is computed once; a finished training is reused.
    With `tune`, each method is first trained with each value tried, and compared at the best of them by pass@1 on
    problems that are then not judged.
    A method of which a training fails is left out of the figures, and named with the reason.
    What the comparison can detect is written before the first training, and at its end it is a run of its own,
    `compare-DIGEST`, with its plan, its tables and its picture, in MLflow too.
    """
    asked = Asked(**given)
    home = Home.from_environment()
    ready = checked(home, asked)
    label_flow_run(f"compare {', '.join(method.name for method in ready.methods)}"[:_NAME_CHARS], "compare")
    tuned, record, failed = _tune(home, ready.tuning, ready) if ready.tuning else (None, {}, {})
    if ready.tuning and tuned:
        ready = replace(ready, methods=ready.tuning.chosen(tuned))
    runs = ready.runs()
    body = {"methods": runs, "budget": ready.asked.budget, "margin": ready.margin, "cluster": asked.cluster, **record}
    name = f"compare-{json_digest(body)[:8]}"  # the same trainings under the same budget are the same run
    say_started(name)
    plan = keep_plan(home, ready, home.runs / name)
    failed |= _train_all(ready, ready.budget, runs)
    left = [(method, of_seeds) for method, of_seeds in runs.items() if method not in failed]
    if not left:
        raise next(iter(failed.values()))
    found = compared_trainings(home, left, Terms(ready.margin, asked.cluster, plan, tuned), ready.budget)
    if failed:
        found["failed"] = [{"method": method, "reason": error.message} for method, error in failed.items()]
    with open_session(RunSpec(name=name, verb="compare", seed=ready.seeds[0], body=body)) as session:
        keep_comparison(found, session.journal.folder)
    return found


def _tune(
    home: Home, tuning: Tuning, ready: Checked
) -> tuple[Tuned, Mapping[str, TuningRecord], dict[str, GradusError]]:
    """Train each method with each value tried; return choice, record, and methods that failed whole."""
    runs, seeds = tuning.runs(), tuning.seeds
    numbers = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    aside(f"tuning with {numbers}, which the comparison does not use")
    failed = _train_all(tuning, ready.budget, runs, "tuning, ")
    if len(failed) == len(runs):
        raise next(iter(failed.values()))
    record = tuning.record(runs)
    tuned = read_tuned(
        home, record, {runs[name][0]: error.message for name, error in failed.items()}, ready.asked.cluster
    )
    without: dict[str, GradusError] = {
        method["method"]: StageError(f"every value tried failed; the first: {method['tried'][0].get('failed')}")
        for method in tuned.figures["methods"]
        if method["chosen"] is None
    }
    return tuned, {"tuning": record}, without


@keeping_workers()
def _train_all(grid: Grid, budget: Budget, runs: Mapping[str, Sequence[str]], what: str = "") -> dict[str, GradusError]:
    """Train each method with each seed; return those of which a training failed, which are then left out."""
    failed, size = dict[str, GradusError](), len(grid.methods)
    for number, seed in enumerate(grid.seeds):
        for place, method in enumerate(grid.methods):
            if method.name in failed:
                continue
            count = f"{1 + number * size + place} of {len(grid.seeds) * size}"
            aside(f"{what}training {count}: {method.name}, seed {seed}")
            try:
                _train(method, seed, budget, runs[method.name][number])
            except (GateError, StageError, BadInputError, PrunedError) as error:
                failed[method.name] = error
                aside(f"failed: {error}")
    return failed


def _train(method: Variant, seed: int, budget: Budget, run: str) -> None:
    """Train a method with a seed, or reuse its training; GradusError if it is another run than was planned."""
    try:
        answer = train_flow(method.with_seed(seed), budget=None if budget.unit == "rounds" else budget)
    except GradusError as error:
        raise type(error)(f"{method.name}, seed {seed}: {error.message}", hint=error.hint or AGAIN) from error
    if answer["run"] != run:
        message = f"{method.name}: a file that it reads was changed after the comparison began"
        raise GradusError(message, hint="repeat the command, which compares the changed method")
