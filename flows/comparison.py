"""`compare`: several methods under one budget and the same seeds, as a Prefect flow; and what trainings came to."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from gradus.data.errors import BadInputError, GateError, GradusError, StageError
from gradus.flows.console.output import aside
from gradus.flows.loop.compared import Conditions, compared_trainings
from gradus.flows.loop.comparison_plan import Intent, keep_plan
from gradus.flows.loop.variants import Variant, methods_of, refuse_single
from gradus.flows.recipe.budget import Budget, parse_budget
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.runs import train_flow
from gradus.flows.served_lines import say_started
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import gradus_flow
from gradus.tasks.config.evaluate import MARGIN
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.figures import Comparison
from gradus.tasks.inspect.comparing.kept import keep_comparison

_NAME_CHARS = 120


@gradus_flow("compare")
def compare(
    recipes: list[str],
    budget: str,
    seeds: Annotated[int, Field(ge=1)] = 5,
    set: list[str] | None = None,  # noqa: A002 - called as on the command line
    margin: Annotated[float, Field(gt=0, lt=100)] = 100 * MARGIN,
    cluster: str = "",
) -> Comparison:
    """Train methods under the same budget and seeds, and judge each pair: better, worse, equivalent or undecided.

    What methods share (problems, profile, hints, first evaluation) is computed once; a finished training is reused.
    A method of which a training fails is left out of the figures, and named with the reason.
    What the comparison can detect is written before the first training, and at its end it is a run of its own,
    `compare-DIGEST`, with its plan, its tables and its picture, in MLflow too.

    Args:
        recipes: Recipes: .toml files, bundled names or runs.
        budget: rounds=N, tokens=N (all that are sampled, evaluation left out) or seconds=N (which does not repeat).
        seeds: Trainings of each method; their seeds follow that of the first recipe.
        set: Settings to change, each as key=value; a key that is given several times makes a method of each value.
        margin: Points of pass@1 within which methods are equivalent.
        cluster: A column of the evaluated problems: those with the same value belong together.
    """
    home, limit = Home.from_environment(), parse_budget(budget)
    methods = methods_of(home.runs, recipes, set or [], limit.amount if limit.unit == "rounds" else None)
    refuse_single(len(methods), seeds)
    for method in methods:
        check_recipe(method.recipe, home.lake)
    label_flow_run(f"compare {', '.join(method.name for method in methods)}"[:_NAME_CHARS], "compare")
    first = methods[0].recipe.seed
    intent = Intent(methods, range(first, first + seeds), limit, margin / 100, cluster)
    runs, failed = intent.runs(), dict[str, GradusError]()
    body = {"methods": runs, "budget": budget, "margin": intent.margin, "cluster": cluster}
    say_started(_name_of(body))
    plan = keep_plan(home, intent, home.runs / _name_of(body))
    for number, seed in enumerate(intent.seeds):
        for place, method in enumerate(methods):
            if method.name in failed:
                continue
            aside(f"training {1 + number * len(methods) + place} of {seeds * len(methods)}: {method.name}, seed {seed}")
            try:
                _train(method, seed, limit, runs[method.name][number])
            except (GateError, StageError, BadInputError) as error:
                failed[method.name] = error
                aside(f"failed: {error}")
    left = [(name, of_seeds) for name, of_seeds in runs.items() if name not in failed]
    if not left:
        raise failed[methods[0].name]
    found = compared_trainings(home, left, Conditions(limit, intent.margin, cluster, plan))
    if failed:
        found["failed"] = [{"method": name, "reason": error.message} for name, error in failed.items()]
    with open_session(RunSpec(name=_name_of(body), verb="compare", seed=first, body=body)) as session:
        keep_comparison(found, session.journal.folder)
    return found


def _name_of(body: Mapping[str, object]) -> str:
    """The name of a comparison's run: the same trainings under the same budget are the same run."""
    return f"compare-{hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:8]}"


def _train(method: Variant, seed: int, budget: Budget, run: str) -> None:
    """Train a method with a seed, or reuse its training; GradusError if it is another run than was planned."""
    try:
        answer = train_flow(method.with_seed(seed), budget=None if budget.unit == "rounds" else budget)
    except GradusError as error:
        hint = error.hint or "the same command goes on where it stopped"
        raise type(error)(f"{method.name}, seed {seed}: {error.message}", hint=hint) from error
    if answer["run"] != run:
        raise GradusError(
            f"{method.name}: a file that it reads was changed after the comparison began",
            hint="repeat the command, which compares the changed method",
        )
