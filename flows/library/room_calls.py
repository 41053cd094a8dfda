"""Room on the disk: prune and restore, and what they would do."""

from gradus.data.errors import UsageError
from gradus.flows.console.room_tables import Freed, Restored
from gradus.flows.library.calling import call, working
from gradus.flows.library.results import Run
from gradus.tasks.config.keep import read_keep
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, full_name

KEEP = "last=2,best"


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
