"""The verbs about room on the disk: prune and restore."""

import sys
from typing import Annotated

import typer

from gradus.flows.cli import completion
from gradus.flows.cli.run_verbs import KnownRun
from gradus.flows.cli.stage_verbs import AsJson
from gradus.flows.console.output import answer, line
from gradus.flows.console.room_tables import render_freed, render_restored
from gradus.flows.library import room_calls

Keep = Annotated[
    str, typer.Option(help="checkpoints that keep their weights: the last N, those of every N rounds, the best one")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be done; change nothing")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
Checkpoint = Annotated[
    str, typer.Argument(help="checkpoints/DIGEST", autocompletion=completion.artifacts("checkpoints"))
]


def prune(
    run: KnownRun, keep: Keep = room_calls.KEEP, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Free room: remove weights and train states of a run's checkpoints, which can be computed again.

    Prints the room to be freed and the cost of restoring it. The last checkpoint, and those of `every`, keep their
    train states. Files that another run has too stay. Rollouts, scores and reports always stay; `gradus restore`
    computes a pruned checkpoint again.
    """
    planned = room_calls.dry_prune(run, keep=keep)
    asked = not (yes or dry_run or as_json) and sys.stdin.isatty() and bool(planned["checkpoints"])
    if dry_run or asked:
        answer(planned, as_json, render_freed)
    if dry_run:
        return
    if asked and not typer.confirm("remove them?"):
        line("nothing was removed")
        return
    answer(room_calls.prune(run, keep=keep), as_json, render_freed)


def restore(checkpoint: Checkpoint, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Compute a pruned checkpoint again, weights and train state, by repeating the updates since the last kept one.

    Each restored file must have its recorded SHA-256; otherwise the command fails.
    """
    planned = room_calls.dry_restore(checkpoint)
    if dry_run or not planned["updates"]:
        answer(planned, as_json, render_restored)
        return
    if not as_json:
        render_restored(planned)
    answer(room_calls.restore(checkpoint), as_json, render_restored)


def register_room(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    for verb in (prune, restore):
        app.command(verb.__name__)(verb)
