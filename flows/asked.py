"""Arguments of a training and of a comparison, checked: declared for Python, the command line and forms of Prefect."""

from collections.abc import Sequence
from typing import Annotated

from gradus.data.errors import UsageError
from gradus.flows.loop.comparing.budget import Asked
from gradus.flows.loop.reruns import Rerun, read_recipe
from gradus.flows.parameters import Input, Named, Taken, methods, named, recipes, recipes_and_runs, tasks
from gradus.flows.recipe.assignments import Assignments, pairs
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.overlays import task_overlay
from gradus.tasks.config.score import MARGIN
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import check_name

POINTS = 100 * MARGIN


def planned(
    recipe: Annotated[Input, Taken("a .toml file, a bundled recipe (demo) or a run", complete=recipes, argument=True)],
    *,
    method: Annotated[
        str | Sequence[str], Taken("lay a method over it: a name or a .toml; repeatable", complete=methods)
    ] = (),
    task: Annotated[
        str | None, Taken("lay a bundled task over it: its problems and their reward", complete=tasks)
    ] = None,
    rounds: Annotated[int | None, Taken("rounds of curate, rollout, score, update; else the recipe's", least=0)] = None,
    engine: Annotated[str | None, Taken("which engine samples; else the recipe's")] = None,
    overlap: Annotated[int | None, Taken("1: generate the next round during an update", least=0, most=1)] = None,
    set: Annotated[  # noqa: A002 - called as on the command line
        Assignments | None, Taken("a setting to change, key=value, such as update.lr=1e-4; repeatable", "--set")
    ] = None,
    run: Annotated[str | None, Taken("name of the run; the recipe's name and digest otherwise")] = None,
) -> Rerun:
    """Check the arguments of a training and return it; UsageError or BadInputError if it cannot run."""
    chosen = {**dict(pairs(set or [])), **({"rollout.engine": engine} if engine else {})}
    methods = [*([task_overlay(task)] if task else []), *([method] if isinstance(method, str) else method)]
    home = Home.from_environment()
    loaded, stored = read_recipe(home.runs, named(recipe), chosen, methods, rounds=rounds, overlap=overlap)
    if run is not None:
        check_name(run, "--run: the name")
    check_recipe(loaded, home.lake)
    return Rerun(loaded, run or stored, like=stored or "")


def asked_for(
    recipes: Annotated[
        Sequence[Input | Named],
        Taken(
            "a recipe, several with --budget or --method, or runs that are there",
            complete=recipes_and_runs,
            argument=True,
        ),
    ],
    *,
    method: Annotated[
        Sequence[str],
        Taken(
            "lay a method over each recipe, a name, a .toml or a+b; each is a row, none the recipe itself",
            complete=methods,
        ),
    ] = (),
    seeds: Annotated[
        int, Taken("trainings of each recipe; their seeds follow that of the first", least=1, most=1000)
    ] = 5,
    budget: Annotated[
        str, Taken("rounds=N, tokens=N (all sampled, evaluation left out) or seconds=N; else the recipe's rounds")
    ] = "",
    set: Annotated[  # noqa: A002 - called as on the command line
        Sequence[str], Taken("a setting, key=value; a key given several times makes a method of each value")
    ] = (),
    margin: Annotated[
        float, Taken("points of pass@1 within which methods are equivalent", least=0.01, most=99.0)
    ] = POINTS,
    cluster: Annotated[
        str, Taken("a column of the evaluated problems: those with the same value belong together")
    ] = "",
    tune: Annotated[
        Sequence[str], Taken("key=a,b,c: compare each recipe at the best of these; several make all combinations")
    ] = (),
    tune_seeds: Annotated[
        int, Taken("trainings of each value tried; their seeds follow those of --seeds", least=1, most=1000)
    ] = 1,
    tune_on: Annotated[
        Input, Taken("tune on these problems; else on a fifth of the evaluated ones, then not judged")
    ] = "",
) -> Asked:
    """Return the arguments of a comparison; UsageError if they cannot be combined."""
    if not (names := list(map(named, recipes))):
        raise UsageError("there is nothing to compare", hint="name recipes, with a budget, or runs that are there")
    if min(seeds, tune_seeds) < 1 or not 0 < margin < 100:
        message = f"seeds = {seeds}, tune_seeds = {tune_seeds} and margin = {margin:g}"
        raise UsageError(message, hint="seeds from 1 on, a margin above 0 points")
    return Asked(names, budget, seeds, set, margin, cluster, tune, tune_seeds, named(tune_on), method)
