"""The verbs about room on the disk: prune and restore."""

import sys
from typing import Annotated

import typer

from gradus.data.errors import UsageError
from gradus.flows.cli import completion
from gradus.flows.cli.run_verbs import KnownRun
from gradus.flows.cli.stage_verbs import AsJson
from gradus.flows.console.output import answer, line
from gradus.flows.console.room_tables import Freed, Restored, render_freed, render_restored
from gradus.tasks.config.keep import read_keep
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, full_name

Keep = Annotated[
    str, typer.Option(help="checkpoints that keep their weights: the last N, those of every N rounds, the best one")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done; change nothing")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
Checkpoint = Annotated[
    str, typer.Argument(help="checkpoints/DIGEST", autocompletion=completion.artifacts("checkpoints"))
]


def prune(
    run: KnownRun, keep: Keep = "last=2,best", dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Free room: remove weights and train states of a run's checkpoints, which can be computed again.

    Says first what is freed, and what having it back takes. The last checkpoint, and those of `every`, keep their train
    states. What another run has too stays. Rollouts, scores and reports always stay; `gradus restore` computes a pruned
    checkpoint again.
    """
    from gradus.flows.loop.pruned_runs import plan_pruning, prune_run

    home = Home.from_environment()
    planned = plan_pruning(home, run, read_keep(keep))
    asked = not (yes or dry_run or as_json) and sys.stdin.isatty() and bool(planned["checkpoints"])
    if dry_run or asked:
        answer(planned, as_json, render_freed)
    if dry_run:
        return
    if asked and not typer.confirm("remove them?"):
        line("nothing was removed")
        return
    done: Freed = prune_run(home, run, read_keep(keep))
    answer(done, as_json, render_freed)


def restore(checkpoint: Checkpoint, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Compute a pruned checkpoint again, weights and train state, by repeating the updates since the last kept one.

    What is put back has the very bytes that were removed, by their SHA-256; nothing else is put back.
    """
    from gradus.flows.loop.pruned_runs import plan_restoring, restore_checkpoint

    home = Home.from_environment()
    if checkpoint.partition("/")[0] != "checkpoints" or not REFERENCE.fullmatch(checkpoint):
        raise UsageError(f"{checkpoint} is no checkpoint", hint="give checkpoints/DIGEST (`gradus show RUN`)")
    name = full_name(home.lake, checkpoint)
    planned: Restored = plan_restoring(home, name)
    if dry_run or not planned["updates"]:
        answer(planned, as_json, render_restored)
        return
    if not as_json:
        render_restored(planned)
    answer(restore_checkpoint(home, name), as_json, render_restored)


def register_room(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    for verb in (prune, restore):
        app.command(verb.__name__)(verb)
