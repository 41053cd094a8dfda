"""Arguments of a training, checked: declared for Python, the command line and forms of Prefect."""

from collections.abc import Sequence
from typing import Annotated

from gradus.flows.loop.reruns import Rerun, read_recipe
from gradus.flows.parameters import Input, Taken, methods, named, recipes, tasks
from gradus.flows.recipe.assignments import Assignments, pairs
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.overlays import task_overlay
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import check_name


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
