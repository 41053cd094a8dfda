"""All verbs but those of stages and of the place: runs and their rows, methods, comparisons, exchange, room."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gradus.data.errors import UsageError
from gradus.flows import parameters
from gradus.flows.asked import planned
from gradus.flows.cli.options import AsJson, DryRun, KnownRun, Partial, damage, may_wait, options_of
from gradus.flows.console.output import answer, aside, fields, line
from gradus.flows.console.run_tables import render_freed, render_restored, render_run
from gradus.flows.library import exchange_calls, results, run_calls
from gradus.flows.loop.comparing.budget import Asked
from gradus.flows.loop.reruns import Rerun
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, check_table, full_name
from gradus.tasks.runtime.calls import label

RunOrArtifact = Annotated[
    str,
    typer.Argument(
        help="a run or an artifact (problems/DIGEST), or the beginning of its name", autocompletion=parameters.runs
    ),
]
DryRoom = Annotated[bool, typer.Option("--dry-run", help="say what would be done; change nothing")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
Planned = Annotated[
    bool, typer.Option("--plan", help="say which difference can be detected, and what that costs; start nothing")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="compute a kept comparison (compare-DIGEST) again from the lake")
]
Plot = Annotated[Path | None, typer.Option("--plot", help="write a picture here (.png, .svg, .pdf)")]


@may_wait
@options_of(run_calls.train)
def train(dry_run: DryRun = False, as_json: AsJson = False, **given: Any) -> None:
    """Run a recipe, or resume a run: the same command continues where it stopped, --rounds with more rounds."""
    train_or_say(planned(**given), as_json=as_json, dry_run=dry_run)


def train_or_say(plan: Rerun, *, as_json: bool, dry_run: bool) -> None:
    """Train as planned, or with `dry_run` say what that would compute."""
    if dry_run:
        from gradus.flows.loop.dry_run import render

        answer(run_calls.foreseen(plan), as_json, render)
        return
    result = run_calls.trained(plan).result
    assert result is not None
    answer(result, as_json, render_run)


@may_wait
@options_of(run_calls.train, "recipe", "method", "overlap")
def demo(dry_run: DryRun = False, as_json: AsJson = False, **given: Any) -> None:
    """The whole loop on bundled problems with a bundled policy, on a CPU, in minutes; --task NAME on other ones."""
    recipe = "tasks" if given.get("task") else "demo"
    train_or_say(planned(recipe, **given), as_json=as_json, dry_run=dry_run)


@may_wait
@options_of(run_calls.rerun)
def rerun(dry_run: DryRun = False, as_json: AsJson = False, **given: Any) -> None:
    """Run one stage of a run again, changed or not; what lies upstream is reused."""
    train_or_say(run_calls.planned_again(**given), as_json=as_json, dry_run=dry_run)


def runs(
    delete: Annotated[
        str | None,
        typer.Option(
            "--delete", help="delete this run instead, after saying what goes", autocompletion=parameters.runs
        ),
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
    from gradus.tasks.runs.listing import list_runs as read

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
    if yes or _agreed("delete them?", "deleted", as_json):
        answer(delete_run(home, run), as_json, render_deleted)


def _agreed(question: str, done: str, as_json: bool) -> bool:
    """Ask at the terminal; UsageError if there is none, or if its output is an answer for a program."""
    if as_json or not sys.stdin.isatty():
        raise UsageError(f"nothing was {done}, since this can only be asked at a terminal", hint="to agree, add --yes")
    agreed = typer.confirm(question)
    if not agreed:
        aside(f"nothing was {done}")
    return agreed


def show(
    run: RunOrArtifact,
    curve: Annotated[
        bool, typer.Option("--curve", help="the sigmoid of pass@1 over the tokens sampled for training (ScaleRL)")
    ] = False,
    suite: Annotated[str, typer.Option(help="the evaluation suite of the curve, if there are several")] = "",
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run did: every stage attempt, its artifact, time and bytes; and why the run did not finish.

    Of an artifact: what made it, of what, its columns and first rows.
    """
    from gradus.flows.console.run_tables import render_curve, render_run_story
    from gradus.tasks.runs.listing import read_run

    home = Home.from_environment()
    if suite and not curve:
        raise UsageError("--suite is that of --curve", hint="give both, or neither")
    if curve:
        if partial:
            raise UsageError("--partial is not for --curve, which reads every evaluation", hint="leave one out")
        if REFERENCE.fullmatch(run):
            raise UsageError(f"--curve is of a run, and {run} names an artifact", hint="`gradus runs` lists the runs")
        answer(results.curve(run, suite), as_json, render_curve)
        return
    if REFERENCE.fullmatch(run):
        _show_artifact(home, full_name(home.lake, run), as_json=as_json)
        return
    with damage(partial) as on_damage:
        answer(read_run(home.runs, run, home.lake, on_damage), as_json, render_run_story)


def _show_artifact(home: Home, name: str, *, as_json: bool) -> None:
    from gradus.data.lake.store import Ref, Store
    from gradus.flows.console.query_rows import print_rows
    from gradus.tasks.inspect.reasons import ArtifactStory, describe
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
    stage: Annotated[str, typer.Argument(help="the stage to explain", autocompletion=parameters.stages)],
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
        typer.Option("--run", help="only what this run made, reused or was given", autocompletion=parameters.runs),
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

    Of an artifact: its rows. Of a file that `gradus bisect` wrote (.jsonl): its rows, to be labelled right or wrong.
    """
    from gradus.flows.console.browser.program import browse_run

    with damage(partial) as on_damage:
        browse_run(Home.from_environment(), run, aside, on_damage)


def methods(
    word: Annotated[
        str, typer.Argument(help="a name, or a word in names, sentences, formulas", autocompletion=parameters.methods)
    ] = "",
    kind: Annotated[str, typer.Option(help="of this kind: method, loss, advantage, filter, reward ...")] = "",
    paper: Annotated[str, typer.Option(help="of this paper, such as 2402.03300")] = "",
    as_json: AsJson = False,
) -> None:
    """List methods and components, by stage; of a NAME the formula, deviations, settings, file, test and a command.

    A method is laid over a recipe: `gradus train RECIPE --method NAME`. A component is named by a setting.
    """
    from gradus.flows.console.methods_table import render_methods
    from gradus.flows.recipe.method_list import selected

    answer(selected(word, kind, paper), as_json, lambda found: render_methods(found, word))


def settings(
    of: Annotated[
        str, typer.Argument(help="a stage, or a key of a recipe such as phase", autocompletion=parameters.stages)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the settings of a recipe and of the stages, or of one, with type, default and text."""
    from gradus.flows.console.methods_table import render_settings
    from gradus.flows.recipe.method_list import listed_settings

    answer(listed_settings(of), as_json, render_settings)


def new(
    kind: Annotated[str, typer.Argument(help="filter, reward, advantage, loss ... (gradus methods)")],
    name: Annotated[str, typer.Argument(help="its name, in lower case with underscores")],
    as_json: AsJson = False,
) -> None:
    """Write a component of your own into this folder: its function, its test and its method, ready to run."""
    from gradus.flows.library.new_component import write_component

    files = [file.name for file in write_component(kind, name, Path())]
    commands = {"test": f"pytest {files[1]}", "try": f"gradus train demo --method {files[2]} --dry-run"}
    answer({"files": files, **commands}, as_json)


@may_wait
@options_of(Asked)
def compare(
    plot: Plot = None,
    plan: Planned = False,
    verify: Verify = False,
    partial: Partial = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Judge recipes at equal cost, each pair: better, worse, equivalent within a margin, or undecided.

    With --budget or --method each recipe is trained, or its training reused, with the same seeds; what recipes share is
    computed once. Without a budget one recipe, or its methods, is trained for its own rounds, and several arguments are
    runs that are there. Each method is judged against its start too. Differences are paired by problem and seed.
    """
    from gradus.flows.console.study_tables import render_comparison
    from gradus.flows.loop.comparing.compared import verify_comparison
    from gradus.flows.loop.comparing.plan import render_plan
    from gradus.flows.loop.dry_run import render_comparison_ahead
    from gradus.tasks.inspect.comparing.figures import FORMATS
    from gradus.tasks.inspect.comparing.figures import plot as write_plot

    if plot is not None:
        check_table(plot.with_suffix(plot.suffix.lower()), "--plot", FORMATS)
    if partial and run_calls.trains(Asked(**given)):
        raise UsageError("--partial goes with runs that are there", hint="leave it out, or name runs (`gradus runs`)")
    if verify:
        if len(given["recipes"]) != 1:
            raise UsageError("--verify checks one comparison", hint="name its run, compare-DIGEST (`gradus runs`)")
        answer(verify_comparison(Home.from_environment(), given["recipes"][0]), as_json)
    elif plan:
        answer(run_calls.plan_comparison(**given), as_json, render_plan)
    elif dry_run:
        answer(run_calls.dry_compare(**given), as_json, render_comparison_ahead)
    else:
        with damage(partial) as on_damage:
            found = run_calls.compared(Asked(**given), on_damage)
            if plot is not None:
                write_plot(found, plot)  # before the answer, whose reader may close the pipe
                aside(f"picture: {plot}")
            answer(found, as_json, render_comparison)


@options_of(exchange_calls.export)
def export(partial: Partial = False, as_json: AsJson = False, **given: Any) -> None:
    """Write a checkpoint as a model folder with its card, or rollouts as another system writes its own."""
    with damage(partial) as on_damage:
        answer(exchange_calls.export(**given, on_damage=on_damage), as_json)


@may_wait
@options_of(exchange_calls.import_rollouts)
def import_(as_json: AsJson = False, **given: Any) -> None:
    """Take in rollouts of another system, with their rewards, as rollouts, scores, problems and difficulty."""
    answer(exchange_calls.import_rollouts(**given), as_json)


@options_of(run_calls.prune)
def prune(dry_run: DryRoom = False, yes: Yes = False, as_json: AsJson = False, **given: Any) -> None:
    """Free room: remove weights and train states of a run's checkpoints, which can be computed again.

    Prints the room to be freed and the cost of restoring it. The last checkpoint, and those of `every`, keep their
    train states. Files that another run has too stay. Rollouts, scores and reports always stay; `gradus restore`
    computes a pruned checkpoint again.
    """
    planned = run_calls.dry_prune(**given)
    ask = bool(planned["checkpoints"]) and not (yes or dry_run)
    if dry_run or ask:
        answer(planned, as_json, render_freed)
    if not dry_run and (not ask or _agreed("remove them?", "removed", as_json)):
        answer(run_calls.prune(**given), as_json, render_freed)


@options_of(run_calls.restore)
def restore(dry_run: DryRoom = False, as_json: AsJson = False, **given: Any) -> None:
    """Compute a pruned checkpoint again, weights and train state, by repeating the updates since the last kept one.

    Each restored file must have its recorded SHA-256; otherwise the command fails.
    """
    planned = run_calls.dry_restore(**given)
    if dry_run or not planned["updates"]:
        answer(planned, as_json, render_restored)
        return
    if not as_json:
        render_restored(planned)
    answer(run_calls.restore(**given), as_json, render_restored)
