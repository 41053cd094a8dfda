"""The verbs about whole runs: train, demo, rerun, runs, show, why, sql, report, browse, prune, restore."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gradus.flows.cli import options
from gradus.flows.cli.options import AsJson, DryRun, KnownRun, Partial, Sets, damage, may_wait
from gradus.flows.console.output import answer, aside, fields, line
from gradus.flows.console.run_tables import render_freed, render_restored, render_run
from gradus.flows.library import results, run_calls
from gradus.flows.loop.reruns import Rerun
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, full_name
from gradus.tasks.runtime.calls import label

Engine = Annotated[str | None, typer.Option(help="which engine samples")]
MethodNames = Annotated[
    list[str] | None,
    typer.Option(
        "--method", help="lay a method over it: a name or a .toml; repeatable", autocompletion=options.methods
    ),
]
Rounds = Annotated[int | None, typer.Option(min=0, help="rounds of curate, rollout, score, update")]
Overlap = Annotated[int | None, typer.Option(min=0, max=1, help="1: generate the next round during an update")]
RunOrArtifact = Annotated[
    str,
    typer.Argument(
        help="a run or an artifact (problems/DIGEST), or the beginning of its name", autocompletion=options.runs
    ),
]
Keep = Annotated[
    str, typer.Option(help="checkpoints that keep their weights: the last N, those of every N rounds, the best one")
]
DryRoom = Annotated[bool, typer.Option("--dry-run", help="say what would be done; change nothing")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
Checkpoint = Annotated[str, typer.Argument(help="checkpoints/DIGEST", autocompletion=options.artifacts("checkpoints"))]
RunName = Annotated[str | None, typer.Option("--run", help="name of the run; the recipe's name and digest otherwise")]


@may_wait
def train(
    recipe: Annotated[str, typer.Argument(help="a .toml file or a bundled recipe", autocompletion=options.recipes)],
    method: MethodNames = None,
    rounds: Rounds = None,
    engine: Engine = None,
    overlap: Overlap = None,
    sets: Sets = None,
    run: RunName = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe, or resume a run: the same command continues where it stopped, --rounds with more rounds."""
    plan = run_calls.planned(
        recipe, method=method or [], set=sets, rounds=rounds, engine=engine, overlap=overlap, run=run
    )
    _train(plan, as_json=as_json, dry_run=dry_run)


def _train(plan: Rerun, *, as_json: bool, dry_run: bool) -> None:
    if dry_run:
        from gradus.flows.loop.dry_run import render

        answer(run_calls.foreseen(plan), as_json, render)
        return
    result = run_calls.trained(plan).result
    assert result is not None
    answer(result, as_json, render_run)


@may_wait
def demo(
    rounds: Rounds = None,
    engine: Engine = None,
    sets: Sets = None,
    run: RunName = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """The whole loop on bundled problems with the bundled policy, on a CPU, in minutes."""
    train(recipe="demo", rounds=rounds, engine=engine, sets=sets, run=run, dry_run=dry_run, as_json=as_json)


@may_wait
def rerun(
    run: KnownRun,
    stage: Annotated[str, typer.Argument(help="the stage to run again", autocompletion=options.stages)],
    round_index: Annotated[int | None, typer.Option("--round", help="in this round only")] = None,
    from_round: Annotated[int, typer.Option("--from-round", min=0, help="in this round and all later ones")] = 0,
    sets: Sets = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run one stage of a run again, changed or not; what lies upstream is reused."""
    plan = run_calls.planned_again(run, stage, set=sets, round=round_index, from_round=from_round)
    _train(plan, as_json=as_json, dry_run=dry_run)


def runs(
    delete: Annotated[
        str | None,
        typer.Option("--delete", help="delete this run instead, after saying what goes", autocompletion=options.runs),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="delete without asking")] = False,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """List the runs, newest first: when each began, what it gained, the bytes of its artifacts.

    `gain` is pass@1 of the main suite after training less that before, in points. `stages` are those computed, and
    in brackets those reused. An artifact of several runs counts in each of them, and once in the sum.
    """
    from gradus.flows.console.run_tables import render_runs
    from gradus.tasks.runs.history import list_runs as read

    home = Home.from_environment()
    if delete is not None:
        _delete(home, delete, yes=yes, as_json=as_json)
        return
    with damage(partial) as on_damage:
        answer(read(home.runs, home.lake, on_damage), as_json, render_runs)


def _delete(home: Home, run: str, *, yes: bool, as_json: bool) -> None:
    from gradus.flows.console.run_tables import render_deleted
    from gradus.flows.deletion import delete_run, plan_deleting

    if not yes:
        answer(plan_deleting(home, run), as_json, render_deleted)
        if as_json or not sys.stdin.isatty() or not typer.confirm("delete them?"):
            aside("nothing was deleted; --yes deletes without asking")
            return
    answer(delete_run(home, run), as_json, render_deleted)


def show(run: RunOrArtifact, partial: Partial = False, as_json: AsJson = False) -> None:
    """Show what a run did: every stage attempt, its artifact, time and bytes; and why the run did not finish.

    Of an artifact: what made it, of what, its columns and first rows.
    """
    from gradus.flows.console.run_tables import render_run_story
    from gradus.tasks.runs.history import read_run

    home = Home.from_environment()
    if REFERENCE.fullmatch(run):
        _show_artifact(home, full_name(home.lake, run), as_json=as_json)
        return
    with damage(partial) as on_damage:
        answer(read_run(home.runs, run, home.lake, on_damage), as_json, render_run_story)


def _show_artifact(home: Home, name: str, *, as_json: bool) -> None:
    from gradus.data.lake.store import Ref, Store
    from gradus.flows.console.query_rows import print_rows
    from gradus.tasks.inspect.artifact import ArtifactStory, describe
    from gradus.tasks.inspect.sql_views import ask

    def render(found: ArtifactStory) -> None:
        fields({key: value for key, value in found.items() if key != "settings"})
        if found["rows"]:
            with ask(home, f"select * from {name} limit 3", None, aside) as rows:  # noqa: S608 - a checked name
                print_rows(rows, None)
            line(f"all rows: `gradus browse {name}`, or in `gradus sql` as the table {name}")

    answer(describe(Store(home.lake), Ref.parse(name)), as_json, render)


def why(
    run: KnownRun,
    stage: Annotated[str, typer.Argument(help="the stage to explain", autocompletion=options.stages)],
    round_index: Annotated[int | None, typer.Option("--round", help="in this round only")] = None,
    as_json: AsJson = False,
) -> None:
    """Say why a stage of a run was computed, or reused: what differed from the nearest call before, by name."""
    chosen = results.run(run)
    found = chosen.why(stage, round=round_index)

    def render(_: object) -> None:
        for row in found:
            line(f"{label(row['stage'], row['round'], row['purpose'])}: {row['status']}: {row['why']}")

    answer({"run": chosen.name, "calls": found}, as_json, render)


def sql(
    query: Annotated[str, typer.Argument(help="a SELECT over samples, runs, stages, metrics, or the tables")],
    run: Annotated[
        str | None,
        typer.Option("--run", help="only what this run made, reused or was given", autocompletion=options.runs),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="rows shown; 0 for all (a terminal: 100)")] = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Ask any question of the lake.

    samples has a row for each rollout that a run used (run, round, purpose, reward, correct, completion ...); runs,
    stages and metrics tell what was done; below them are the tables problems, hints, plan, rollouts, scores,
    difficulty, evaluations, each with its artifact, and every artifact by its name (from problems/DIGEST).
    `show tables` and `describe samples` are queries too.
    """
    from gradus.flows.console.query_rows import print_json, print_rows
    from gradus.tasks.inspect.sql_views import ask

    with damage(partial) as on_damage, ask(Home.from_environment(), query, run, aside, on_damage) as found:
        if as_json:
            print_json(found, limit or 0)
        else:
            print_rows(found, limit)


def report(
    run: KnownRun,
    out: Annotated[Path, typer.Option(help="the page to write; replaced if it is there")] = Path("report.html"),
    pictures: Annotated[Path | None, typer.Option(help="folder for its pictures as PNG files")] = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Write what a run did as one HTML page: curves, difficulty, hints, time, what was solved and lost, samples.

    The page loads nothing from anywhere and runs no script; what a policy wrote is text in it.
    """
    from gradus.tasks.inspect.report.writing import write_report

    with damage(partial) as on_damage:
        home = Home.from_environment()
        files = write_report(home, run, out.absolute(), aside, pictures=pictures, on_damage=on_damage)

        def render(_: object) -> None:
            for path in files:
                line(str(path))

        answer({"files": [str(path) for path in files]}, as_json, render)


def browse(run: RunOrArtifact, partial: Partial = False) -> None:
    """Look through a run in the terminal: rounds, problems, groups side by side, a problem between two rounds.

    Of an artifact: its rows.
    """
    from gradus.flows.console.browser.program import browse_run

    with damage(partial) as on_damage:
        browse_run(Home.from_environment(), run, aside, on_damage)


def prune(
    run: KnownRun, keep: Keep = run_calls.KEEP, dry_run: DryRoom = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Free room: remove weights and train states of a run's checkpoints, which can be computed again.

    Prints the room to be freed and the cost of restoring it. The last checkpoint, and those of `every`, keep their
    train states. Files that another run has too stay. Rollouts, scores and reports always stay; `gradus restore`
    computes a pruned checkpoint again.
    """
    planned = run_calls.dry_prune(run, keep=keep)
    asked = not (yes or dry_run or as_json) and sys.stdin.isatty() and bool(planned["checkpoints"])
    if dry_run or asked:
        answer(planned, as_json, render_freed)
    if dry_run:
        return
    if asked and not typer.confirm("remove them?"):
        line("nothing was removed")
        return
    answer(run_calls.prune(run, keep=keep), as_json, render_freed)


def restore(checkpoint: Checkpoint, dry_run: DryRoom = False, as_json: AsJson = False) -> None:
    """Compute a pruned checkpoint again, weights and train state, by repeating the updates since the last kept one.

    Each restored file must have its recorded SHA-256; otherwise the command fails.
    """
    planned = run_calls.dry_restore(checkpoint)
    if dry_run or not planned["updates"]:
        answer(planned, as_json, render_restored)
        return
    if not as_json:
        render_restored(planned)
    answer(run_calls.restore(checkpoint), as_json, render_restored)
