"""The verbs about whole runs: train, demo, rerun, runs, show, sql."""

import sys
from typing import Annotated

import typer

from gradus.data.records import Figure
from gradus.flows.cli import completion
from gradus.flows.cli.partial import Partial, damage
from gradus.flows.cli.stage_verbs import AsJson, Sets
from gradus.flows.cli.waiting import may_wait
from gradus.flows.console.answers import SuiteFigures, TrainAnswer
from gradus.flows.console.output import answer, aside, fields, line, table
from gradus.flows.library import results, run_calls
from gradus.flows.loop.reruns import Rerun
from gradus.flows.loop.reruns import Rounds as RerunRounds
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, full_name
from gradus.tasks.runs.records import DomainFigures, Evaluation, Versus
from gradus.tasks.runtime.calls import label

Engine = Annotated[str | None, typer.Option(help="which engine samples")]
MethodNames = Annotated[
    list[str] | None,
    typer.Option(
        "--method", help="lay a method over it: a name or a .toml; repeatable", autocompletion=completion.methods
    ),
]
Rounds = Annotated[int | None, typer.Option(min=0, help="rounds of curate, rollout, score, update")]
Overlap = Annotated[int | None, typer.Option(min=0, max=1, help="1: generate the next round during an update")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be computed, why, and its cost; start nothing")]
KnownRun = Annotated[
    str, typer.Argument(help="a run, or the beginning of its name (`gradus runs`)", autocompletion=completion.runs)
]
RunOrArtifact = Annotated[
    str,
    typer.Argument(
        help="a run or an artifact (problems/DIGEST), or the beginning of its name", autocompletion=completion.runs
    ),
]
RunName = Annotated[str | None, typer.Option("--run", help="name of the run; the recipe's name and digest otherwise")]


def train(
    recipe: Annotated[str, typer.Argument(help="a .toml file or a bundled recipe", autocompletion=completion.recipes)],
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


def demo(
    rounds: Rounds = None,
    engine: Engine = None,
    sets: Sets = None,
    run: RunName = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """The whole loop on bundled problems with the bundled policy, on a CPU, in minutes."""
    train("demo", rounds=rounds, engine=engine, sets=sets, run=run, dry_run=dry_run, as_json=as_json)


def rerun(
    run: KnownRun,
    stage: Annotated[str, typer.Argument(help="the stage to run again", autocompletion=completion.stages)],
    round_index: Annotated[int | None, typer.Option("--round", help="in this round only")] = None,
    from_round: Annotated[int, typer.Option("--from-round", min=0, help="in this round and all later ones")] = 0,
    sets: Sets = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run one stage of a run again, changed or not; what lies upstream is reused."""
    plan = run_calls.planned_again(run, stage, set=sets, rounds=RerunRounds(round_index, from_round))
    _train(plan, as_json=as_json, dry_run=dry_run)


def list_runs(
    delete: Annotated[
        str | None,
        typer.Option(
            "--delete", help="delete this run instead, after saying what goes", autocompletion=completion.runs
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
    from gradus.tasks.runs.history import list_runs as read

    home = Home.from_environment()
    if delete is not None:
        _delete(home, delete, yes=yes, as_json=as_json)
        return
    with damage(partial) as on_damage:
        answer(read(home.runs, home.lake, on_damage), as_json, render_runs)


def _delete(home: Home, run: str, *, yes: bool, as_json: bool) -> None:
    from gradus.flows.console.room_tables import render_deleted
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
    stage: Annotated[str, typer.Argument(help="the stage to explain", autocompletion=completion.stages)],
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
        typer.Option("--run", help="only what this run made, reused or was given", autocompletion=completion.runs),
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


RUN_VERBS = (train, demo, rerun)
"""The verbs that are flows."""


def register_runs(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    for verb in RUN_VERBS:
        app.command(verb.__name__)(may_wait(verb))
    for verb in (show, why, sql):
        app.command(verb.__name__)(verb)
    app.command("runs")(list_runs)


def render_run(result: TrainAnswer) -> None:
    """The end of a training run: accuracy by suite, newly solved problems, time per stage, where to look."""
    for name, figures in result["suites"].items():
        _suite(name, figures, chosen=result["best"] != result["policy"])
    for remark in result["remarks"]:
        line(f"note: {remark}")
    stages = [(name, s["ran"], s["reused"], f"{s['seconds']:.1f}") for name, s in result["stages"].items()]
    table("stages", ("stage", "ran", "reused", "seconds"), stages)
    if "versus" in result["after"]:
        _gain(result["after"]["versus"])
    facts = ("run", "rounds", "updates", "tokens_generated", "tokens_trained", "seconds", "out")
    fields({key: _count(result[key]) for key in facts})
    reading = " ".join(f"`gradus {verb} {result['run']}`," for verb in ("browse", "report"))
    line(f"look: `gradus ui` (Prefect, MLflow), {reading} `gradus sql 'select ...'`")


def _suite(name: str, figures: SuiteFigures, *, chosen: bool) -> None:
    """Return pass@1 of a suite before and after training, and of the best checkpoint if that is another one."""
    shown = {"before": figures["before"], "after": figures["after"], **({"best": figures["best"]} if chosen else {})}
    domains = sorted({domain for each in shown.values() for domain in each["per_domain"]})
    rows = [(d, *(_accuracy(each["per_domain"].get(d)) for each in shown.values())) for d in domains]
    rows.append(("all", *(_accuracy(each["pass_at"].get("1")) for each in shown.values())))
    if any(each["unjudged"] for each in shown.values()):
        rows.append(("judged rollouts", *(_coverage(each) for each in shown.values())))
    table(f"pass@1 on {name} (95 % interval)", ("domain", *shown), rows)


def _coverage(evaluation: Evaluation) -> str:
    return f"{evaluation['judged']} of {evaluation['rollouts']}"


def _gain(versus: Versus) -> None:
    """Return the gain of the policy over the one it started from, on the same problems and seeds."""
    if "gain" not in versus:
        return
    gain = versus["gain"]
    low, high = 100 * gain["low"], 100 * gain["high"]
    line(f"gain in pass@1: {100 * gain['value']:.1f} points (95 % interval {low:.1f} to {high:.1f})")
    line(
        f"{versus['newly_solved']} problems that no rollout solved at the start are solved now, "
        f"{versus['newly_lost']} the other way round (of {versus['problems']})"
    )


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _accuracy(cell: Figure | DomainFigures | None) -> str:
    if not cell:
        return "-"
    value = cell["value"] if "value" in cell else cell["pass_at_1"]
    return f"{value:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
