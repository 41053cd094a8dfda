"""The verb that puts methods side by side: compare."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradus.data.errors import UsageError
from gradus.flows.cli import completion
from gradus.flows.cli.run_verbs import DryRun
from gradus.flows.cli.stage_verbs import AsJson
from gradus.flows.cli.waiting import may_wait
from gradus.flows.console.output import answer, aside
from gradus.flows.environment import api
from gradus.flows.loop.variants import Variant, methods_of
from gradus.flows.recipe.budget import HOW, Budget, parse_budget
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import RECIPES
from gradus.tasks.config.settings import Home

if TYPE_CHECKING:
    from gradus.tasks.inspect.comparing.report import Comparison

Methods = Annotated[
    list[str],
    typer.Argument(help="recipes, with --budget; or runs that are there", autocompletion=completion.recipes_and_runs),
]
Seeds = Annotated[int, typer.Option(min=1, max=1000, help="trainings of each recipe")]
BudgetText = Annotated[
    str, typer.Option("--budget", help="rounds=N, tokens=N (all that are sampled, evaluation left out) or seconds=N")
]
Sweep = Annotated[
    list[str] | None,
    typer.Option("--set", help="a setting, key=value; a key given several times makes a method of each value"),
]
Plot = Annotated[Path | None, typer.Option("--plot", help="write a picture here (.png, .svg, .pdf)")]


def compare(
    methods: Methods,
    seeds: Seeds = 3,
    budget: BudgetText = "",
    sets: Sweep = None,
    plot: Plot = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Say which recipe is better at equal cost, and whether that is a difference.

    With --budget each recipe is trained, or its training reused, with the same seeds; what recipes share is computed
    once. Without it, the arguments are runs that are there. Differences are paired by problem and seed.
    """
    from gradus.flows.console.comparison_tables import render_comparison
    from gradus.tasks.inspect.comparing.plot import check_plot
    from gradus.tasks.inspect.comparing.plot import plot as write_plot

    if plot is not None:
        check_plot(plot)
    home = Home.from_environment()
    if dry_run:
        _look(home, methods, budget, seeds, sets or [], as_json=as_json)
        return
    found = _trained(home, methods, budget, seeds, sets or []) if budget else _there(home, methods, sets)
    if plot is not None:
        write_plot(found, plot)  # before the answer, whose reader may close the pipe
        aside(f"picture: {plot}")
    answer(found, as_json, render_comparison)


def _planned(home: Home, recipes: list[str], budget: str, sets: list[str]) -> tuple[list[Variant], Budget]:
    """Return methods and budget, after what can be refused before anything starts."""
    limit = parse_budget(budget)
    methods = methods_of(home.runs, recipes, sets, limit.amount if limit.unit == "rounds" else None)
    for method in methods:
        check_recipe(method.recipe, home.lake)
    return methods, limit


def _look(home: Home, recipes: list[str], budget: str, seeds: int, sets: list[str], *, as_json: bool) -> None:
    """Say what a comparison would compute."""
    from gradus.flows.loop.comparison_ahead import look_ahead_comparison, render_comparison_ahead

    methods, limit = _planned(home, recipes, budget, sets)
    first = methods[0].recipe.seed
    found = look_ahead_comparison(home, methods, range(first, first + seeds), limit)
    answer(found, as_json, render_comparison_ahead)


def _trained(home: Home, recipes: list[str], budget: str, seeds: int, sets: list[str]) -> "Comparison":
    """Train the methods, or reuse their trainings, and compare them."""
    _planned(home, recipes, budget, sets)
    with api() as ready:
        from gradus.flows import comparison  # Prefect, which a wrong recipe need not wait for

        ready()
        return comparison.compare(recipes, budget, seeds, sets)


def _there(home: Home, runs: list[str], sets: list[str] | None) -> "Comparison":
    """Compare runs that are there; nothing is computed."""
    from gradus.flows.loop.compared import compared_runs

    if sets:
        raise UsageError("--set changes recipes that are trained", hint="give a budget, for example --budget rounds=10")
    for name in runs:
        if name.endswith(".toml") or (RECIPES / f"{name}.toml").is_file():
            raise UsageError(f"{name} is a recipe, and there is no budget to train it with", hint=HOW)
    return compared_runs(home, runs)


def register_comparison(app: typer.Typer) -> None:
    """Add the verb to the program."""
    app.command("compare")(may_wait(compare))
