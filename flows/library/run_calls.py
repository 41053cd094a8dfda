"""Whole runs and their room on the disk: train, rerun of one stage, prune, restore, and what they would do."""

from collections.abc import Sequence

from gradus.data.errors import UsageError
from gradus.flows.console.answers import Forecast, Freed, Restored
from gradus.flows.library.calling import Input, call, computing, named, taking, working
from gradus.flows.library.results import Run
from gradus.flows.loop.reruns import Rerun, Rounds, plan_rerun, read_recipe
from gradus.flows.recipe.checking import check_recipe, check_settings
from gradus.flows.recipe.config import Assignments, pairs
from gradus.tasks.config.keep import read_keep
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, check_name, full_name
from gradus.tasks.runs.history import run_folder

KEEP = "last=2,best"


def planned(
    recipe: Input,
    *,
    method: str | Sequence[str] = (),
    set: Assignments | None = None,  # noqa: A002 - called as on the command line
    rounds: int | None = None,
    engine: str | None = None,
    overlap: int | None = None,
    run: str | None = None,
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


def planned_again(
    run: Run | str,
    stage: str,
    *,
    set: Assignments | None = None,  # noqa: A002
    round: int | None = None,
    from_round: int = 0,
) -> Rerun:
    """Return the rerun that is asked for, checked; UsageError if it cannot be."""
    home = Home.from_environment()
    plan = plan_rerun(home.runs, run_folder(home.runs, _name(run)).name, stage, Rounds(round, from_round), set or [])
    if set:
        check_settings(plan.recipe, home.lake)
    return plan


@call
@taking(planned)
def train(plan: Rerun) -> Run:
    """Run a recipe, or resume a run: the same call continues where it stopped, more `rounds` after the last one.

    `recipe` is a .toml file, a bundled recipe or a run; `method` lays methods over it, by name or .toml file; `set`
    changes settings, `{"update.lr": 1e-4}`.
    """
    return trained(plan)


@call
@taking(planned)
def dry_run(plan: Rerun) -> Forecast:
    """Return what `train` would compute and reuse, why, and what that costs; nothing is started."""
    return foreseen(plan)


@call
@taking(planned_again)
def rerun(plan: Rerun) -> Run:
    """Run one stage of a run again, changed or not, in one round, in those from one on, or in all."""
    return trained(plan)


@call
@taking(planned_again)
def dry_rerun(plan: Rerun) -> Forecast:
    """Return what `rerun` would compute and reuse, why, and what that costs; nothing is started."""
    return foreseen(plan)


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


@call
def prune(run: Run | str, *, keep: str = KEEP) -> Freed:
    """Remove weights and train states of a run's checkpoints, which can be computed again; return what was freed.

    `keep` names checkpoints that keep their weights: the last N, those of every N rounds, the best one. GradusError if
    a command works on the run.
    """
    from gradus.flows.loop.pruned_runs import prune_run

    return prune_run(Home.from_environment(), _name(run), read_keep(keep))


@call
def dry_prune(run: Run | str, *, keep: str = KEEP) -> Freed:
    """Return what `prune` would remove, and what having it back would take; nothing is changed."""
    from gradus.flows.loop.pruned_runs import plan_pruning

    return plan_pruning(Home.from_environment(), _name(run), read_keep(keep))


@call
def restore(checkpoint: str) -> Restored:
    """Compute a pruned checkpoint again, to the bytes that it had; return the number of updates that were repeated.

    GradusError if its updates do not repeat themselves, or made other bytes.
    """
    from gradus.flows.loop.pruned_runs import restore_checkpoint

    planned = dry_restore(checkpoint)
    if not planned["updates"]:
        return planned
    with working():
        return restore_checkpoint(Home.from_environment(), planned["checkpoint"])


@call
def dry_restore(checkpoint: str) -> Restored:
    """Return what `restore` would take: no update if the checkpoint is whole; nothing is changed."""
    from gradus.flows.loop.pruned_runs import plan_restoring

    home = Home.from_environment()
    if checkpoint.partition("/")[0] != "checkpoints" or not REFERENCE.fullmatch(checkpoint):
        raise UsageError(f"{checkpoint} is no checkpoint", hint="give checkpoints/DIGEST (`gradus show RUN`)")
    return plan_restoring(home, full_name(home.lake, checkpoint))


def _name(of: Run | str) -> str:
    return of.name if isinstance(of, Run) else of
