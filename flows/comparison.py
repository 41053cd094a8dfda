"""`compare`: several methods under one budget and the same seeds, as a Prefect flow; and what trainings came to."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from gradus.data.errors import GradusError
from gradus.flows.console.output import aside
from gradus.flows.loop.compared import compared_trainings
from gradus.flows.loop.variants import Variant, methods_of
from gradus.flows.recipe.budget import Budget, parse_budget
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.runs import train_flow
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import gradus_flow
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.kept import keep_comparison
from gradus.tasks.inspect.comparing.report import Comparison

_NAME_CHARS = 120


@gradus_flow("compare")
def compare(
    recipes: list[str],
    budget: str,
    seeds: Annotated[int, Field(ge=1)] = 3,
    set: list[str] | None = None,  # noqa: A002 - called as on the command line
) -> Comparison:
    """Train several methods under the same budget and seeds, and say which helped, and whether that is a difference.

    What methods share (problems, profile, hints, first evaluation) is computed once; a finished training is reused.
    At its end the comparison is a run of its own, `compare-DIGEST`, with its tables and its picture, in MLflow too.

    Args:
        recipes: Recipes: .toml files, bundled names or runs.
        budget: rounds=N, tokens=N (all that are sampled, evaluation left out) or seconds=N (which does not repeat).
        seeds: Trainings of each method; their seeds follow that of the first recipe.
        set: Settings to change, each as key=value; a key that is given several times makes a method of each value.
    """
    home, limit = Home.from_environment(), parse_budget(budget)
    methods = methods_of(home.runs, recipes, set or [], limit.amount if limit.unit == "rounds" else None)
    for method in methods:
        check_recipe(method.recipe, home.lake)
    label_flow_run(f"compare {', '.join(method.name for method in methods)}"[:_NAME_CHARS], "compare")
    first = methods[0].recipe.seed
    runs: dict[str, list[str]] = {method.name: [] for method in methods}
    for number, seed in enumerate(range(first, first + seeds)):
        for place, method in enumerate(methods):
            aside(f"training {1 + number * len(methods) + place} of {seeds * len(methods)}: {method.name}, seed {seed}")
            runs[method.name].append(_trained(method, seed, limit))
    found = compared_trainings(home, [(method, runs[method.name]) for method in methods], limit)
    body = {"methods": runs, "budget": budget}
    with open_session(RunSpec(name=_name_of(body), verb="compare", seed=first, body=body)) as session:
        keep_comparison(found, session.journal.folder)
    return found


def _name_of(body: Mapping[str, object]) -> str:
    """The name of a comparison's run: the same trainings under the same budget are the same run."""
    return f"compare-{hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:8]}"


def _trained(method: Variant, seed: int, budget: Budget) -> str:
    """Train a method with a seed, or reuse its training; return the name of the run."""
    try:
        answer = train_flow(method.with_seed(seed), budget=None if budget.unit == "rounds" else budget)
    except GradusError as error:
        hint = error.hint or "the same command goes on where it stopped"
        raise type(error)(f"{method.name}, seed {seed}: {error.message}", hint=hint) from error
    return answer["run"]
