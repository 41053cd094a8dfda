"""The verb that puts methods side by side: compare."""

from pathlib import Path
from typing import Annotated

import typer

from gradus.data.errors import UsageError
from gradus.flows.cli import options
from gradus.flows.cli.options import AsJson, DryRun, Partial, damage, may_wait
from gradus.flows.console.output import answer, aside
from gradus.flows.library.compare_calls import compared, foreseen_comparison, planned_comparison
from gradus.flows.loop.comparing.asked import Asked
from gradus.tasks.config.evaluate import MARGIN
from gradus.tasks.config.settings import Home

MethodRows = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="lay a method over each recipe, a name, a .toml or a+b; each is a row, none the recipe itself",
        autocompletion=options.methods,
    ),
]
Recipes = Annotated[
    list[str],
    typer.Argument(
        help="recipes, with --budget or --method; or runs that are there", autocompletion=options.recipes_and_runs
    ),
]
Seeds = Annotated[int, typer.Option(min=1, max=1000, help="trainings of each recipe")]
BudgetText = Annotated[
    str, typer.Option("--budget", help="rounds=N, tokens=N (all that are sampled, evaluation left out) or seconds=N")
]
Sweep = Annotated[
    list[str] | None,
    typer.Option("--set", help="a setting, key=value; a key given several times makes a method of each value"),
]
Margin = Annotated[float, typer.Option(min=0.01, max=99.0, help="points of pass@1 within which methods are equivalent")]
Cluster = Annotated[
    str, typer.Option(help="a column of the evaluated problems: those with the same value belong together")
]
Tune = Annotated[
    list[str] | None,
    typer.Option("--tune", help="key=a,b,c: compare each recipe at the best of these; several make all combinations"),
]
TuneSeeds = Annotated[int, typer.Option(min=1, max=1000, help="trainings of each value tried; others than --seeds")]
TuneOn = Annotated[
    str, typer.Option(metavar="PROBLEMS", help="tune on these; else on a fifth of the evaluated ones, then not judged")
]
Planned = Annotated[
    bool, typer.Option("--plan", help="say which difference can be detected, and what that costs; start nothing")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="compute a kept comparison (compare-DIGEST) again from the lake")
]
Plot = Annotated[Path | None, typer.Option("--plot", help="write a picture here (.png, .svg, .pdf)")]


@may_wait
def compare(
    recipes: Recipes,
    method: MethodRows = None,
    seeds: Seeds = 5,
    budget: BudgetText = "",
    sets: Sweep = None,
    margin: Margin = 100 * MARGIN,
    cluster: Cluster = "",
    tune: Tune = None,
    tune_seeds: TuneSeeds = 1,
    tune_on: TuneOn = "",
    plot: Plot = None,
    plan: Planned = False,
    verify: Verify = False,
    partial: Partial = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Judge recipes at equal cost, each pair: better, worse, equivalent within a margin, or undecided.

    With --budget or --method each recipe is trained, or its training reused, with the same seeds; what recipes share is
    computed once. Without a budget, methods are trained for the recipe's own rounds, and otherwise the arguments are
    runs that are there. Differences are paired by problem and seed.
    """
    from gradus.flows.console.comparison_tables import render_comparison
    from gradus.tasks.inspect.comparing.files import check_plot
    from gradus.tasks.inspect.comparing.files import plot as write_plot

    if plot is not None:
        check_plot(plot)
    if partial and budget:
        raise UsageError("--partial goes with runs that are there", hint="leave it out, or leave --budget out")
    asked = Asked(recipes, budget, seeds, sets or [], margin, cluster, tune or [], tune_seeds, tune_on, method or [])
    if verify:
        _verify(asked, as_json=as_json)
    elif plan:
        from gradus.flows.loop.comparison_plan import render_plan

        answer(planned_comparison(asked), as_json, render_plan)
    elif dry_run:
        from gradus.flows.loop.dry_run import render_comparison_ahead

        answer(foreseen_comparison(asked), as_json, render_comparison_ahead)
    else:
        with damage(partial) as on_damage:
            found = compared(asked, on_damage)
            if plot is not None:
                write_plot(found, plot)  # before the answer, whose reader may close the pipe
                aside(f"picture: {plot}")
            answer(found, as_json, render_comparison)


def _verify(asked: Asked, *, as_json: bool) -> None:
    """Compute a kept comparison again."""
    from gradus.flows.loop.verified import verify_comparison

    if len(asked.recipes) != 1:
        raise UsageError("--verify checks one comparison", hint="name its run, compare-DIGEST (`gradus runs`)")
    answer(verify_comparison(Home.from_environment(), asked.recipes[0]), as_json)
