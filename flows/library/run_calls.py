"""Whole runs: train and rerun of one stage, and what they would do."""

from collections.abc import Sequence

from gradus.flows.console.answers import Forecast
from gradus.flows.library.calling import Input, call, computing, named
from gradus.flows.library.results import Run
from gradus.flows.loop.reruns import Rerun, Rounds, plan_rerun, read_recipe
from gradus.flows.recipe.checking import check_recipe, check_settings
from gradus.flows.recipe.config import Assignments, pairs
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import check_name
from gradus.tasks.runs.history import run_folder


@call
def train(
    recipe: Input,
    *,
    method: str | Sequence[str] = (),
    set: Assignments | None = None,  # noqa: A002 - called as on the command line
    rounds: int | None = None,
    engine: str | None = None,
    overlap: int | None = None,
    run: str | None = None,
) -> Run:
    """Run a recipe, or resume a run: the same call continues where it stopped, more `rounds` after the last one.

    `recipe` is a .toml file, a bundled recipe or a run; `method` lays methods over it, by name or .toml file; `set`
    changes settings, `{"update.lr": 1e-4}`.
    """
    return trained(planned(recipe, method=method, set=set, rounds=rounds, engine=engine, overlap=overlap, run=run))


@call
def rerun(
    run: Run | str,
    stage: str,
    *,
    set: Assignments | None = None,  # noqa: A002
    round: int | None = None,
    from_round: int = 0,
) -> Run:
    """Run one stage of a run again, changed or not, in one round, in those from one on, or in all."""
    return trained(planned_again(run, stage, set=set, rounds=Rounds(round, from_round)))


@call
def dry_run(
    recipe: Input,
    *,
    method: str | Sequence[str] = (),
    set: Assignments | None = None,  # noqa: A002
    rounds: int | None = None,
    engine: str | None = None,
    overlap: int | None = None,
    run: str | None = None,
) -> Forecast:
    """Return what `train` would compute and reuse, why, and what that costs; nothing is started."""
    return foreseen(planned(recipe, method=method, set=set, rounds=rounds, engine=engine, overlap=overlap, run=run))


@call
def dry_rerun(
    run: Run | str,
    stage: str,
    *,
    set: Assignments | None = None,  # noqa: A002
    round: int | None = None,
    from_round: int = 0,
) -> Forecast:
    """Return what `rerun` would compute and reuse, why, and what that costs; nothing is started."""
    return foreseen(planned_again(run, stage, set=set, rounds=Rounds(round, from_round)))


def planned(
    recipe: Input,
    *,
    method: str | Sequence[str] = (),
    set: Assignments | None,  # noqa: A002
    rounds: int | None,
    engine: str | None,
    overlap: int | None,
    run: str | None,
) -> Rerun:
    """Return the training that is asked for, checked; UsageError or BadInputError if it cannot be."""
    chosen = {**dict(pairs(set or [])), **({"rollout.engine": engine} if engine else {})}
    methods = [method] if isinstance(method, str) else method
    home = Home.from_environment()
    loaded, stored = read_recipe(home.runs, named(recipe), chosen, methods, rounds=rounds, overlap=overlap)
    if run is not None:
        check_name(run, "--run: the name")
    check_recipe(loaded, home.lake)
    return Rerun(loaded, run or stored)


def planned_again(run: Run | str, stage: str, *, set: Assignments | None, rounds: Rounds) -> Rerun:  # noqa: A002
    """Return the rerun that is asked for, checked; UsageError if it cannot be."""
    home = Home.from_environment()
    name = run_folder(home.runs, run.name if isinstance(run, Run) else run).name
    plan = plan_rerun(home.runs, name, stage, rounds, set or [])
    if set:
        check_settings(plan.recipe, home.lake)
    return plan


def foreseen(plan: Rerun) -> Forecast:
    """Return what a training would do."""
    from gradus.flows.loop.dry_run import look_ahead

    return look_ahead(Home.from_environment(), plan)


def trained(plan: Rerun) -> Run:
    """Train as planned."""
    with computing() as ready:
        from gradus.flows import runs  # Prefect, which a wrong recipe need not wait for

        ready()
        result = runs.train_flow(plan.recipe, plan.run, list(plan.forced))
    return Run(result["run"], Home.from_environment(), result)
