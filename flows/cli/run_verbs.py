"""The verbs about whole runs: train, demo, rerun, runs, show, sql, methods."""

from typing import Annotated

import typer

from gradus.data.records import Figure
from gradus.flows.cli import completion
from gradus.flows.cli.stage_verbs import AsJson, Sets
from gradus.flows.cli.waiting import may_wait
from gradus.flows.console.answers import SuiteFigures, TrainAnswer
from gradus.flows.console.output import answer, aside, fields, line, table
from gradus.flows.environment import api
from gradus.flows.loop.reruns import Rerun, chosen_calls, plan_rerun, read_recipe
from gradus.flows.loop.reruns import Rounds as RerunRounds
from gradus.flows.recipe.checking import check_recipe, check_settings
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import check_name
from gradus.tasks.runs.history import run_folder
from gradus.tasks.runs.records import DomainFigures, Evaluation, Versus
from gradus.tasks.runtime.calls import label

Engine = Annotated[str | None, typer.Option(help="which engine samples")]
Rounds = Annotated[int | None, typer.Option(min=0, help="rounds of curate, rollout, score, update")]
Overlap = Annotated[int | None, typer.Option(min=0, max=1, help="1: generate the next round during an update")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="say what would be computed, why, and its cost; start nothing")]
KnownRun = Annotated[
    str, typer.Argument(help="a run, or the beginning of its name (`gradus runs`)", autocompletion=completion.runs)
]
RunName = Annotated[str | None, typer.Option("--run", help="name of the run; the recipe's name and digest otherwise")]


def train(
    recipe: Annotated[str, typer.Argument(help="a .toml file or a bundled recipe", autocompletion=completion.recipes)],
    rounds: Rounds = None,
    engine: Engine = None,
    overlap: Overlap = None,
    sets: Sets = None,
    run: RunName = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe, or go on with a run: the same command goes on where it stopped, --rounds with more rounds."""
    chosen = [*(sets or []), *([f"rollout.engine={engine}"] if engine else [])]
    home = Home.from_environment()
    loaded, stored = read_recipe(home.runs, recipe, chosen, rounds=rounds, overlap=overlap)
    if run is not None:
        check_name(run, "--run: the name")
    check_recipe(loaded, home.lake)
    _train(Rerun(loaded, run or stored), as_json=as_json, dry_run=dry_run)


def _train(plan: Rerun, *, as_json: bool, dry_run: bool) -> None:
    if dry_run:
        from gradus.flows.loop.dry_run import look_ahead, render

        answer(look_ahead(Home.from_environment(), plan), as_json, render)
        return
    with api() as ready:
        from gradus.flows import runs  # Prefect, which a wrong recipe need not wait for

        ready()
        answer(runs.train_flow(plan.recipe, plan.run, list(plan.forced)), as_json, render_run)


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
    home = Home.from_environment()
    chosen = RerunRounds(round_index, from_round)
    plan = plan_rerun(home.runs, run_folder(home.runs, run).name, stage, chosen, sets or [])
    if sets:
        check_settings(plan.recipe, home.lake)
    _train(plan, as_json=as_json, dry_run=dry_run)


def list_runs(as_json: AsJson = False) -> None:
    """List the runs, newest first: when each began, what it gained, the bytes of its artifacts.

    `gain` is pass@1 of the main suite after training less that before, in points. `stages` are those computed, and
    in brackets those reused. An artifact of several runs counts in each of them, and once in the sum.
    """
    from gradus.flows.console.run_tables import render_runs
    from gradus.tasks.runs.history import list_runs as read

    home = Home.from_environment()
    answer(read(home.runs, home.lake), as_json, render_runs)


def show(run: KnownRun, as_json: AsJson = False) -> None:
    """Show what a run did: every stage attempt, its artifact, time and bytes; and why the run did not finish."""
    from gradus.flows.console.run_tables import render_run_story
    from gradus.tasks.runs.history import read_run

    home = Home.from_environment()
    answer(read_run(home.runs, run, home.lake), as_json, render_run_story)


def why(
    run: KnownRun,
    stage: Annotated[str, typer.Argument(help="the stage to explain", autocompletion=completion.stages)],
    round_index: Annotated[int | None, typer.Option("--round", help="in this round only")] = None,
    as_json: AsJson = False,
) -> None:
    """Say why a stage of a run was computed, or reused: what differed from the nearest call before, by name."""
    from gradus.data.lake.store import Store
    from gradus.tasks.inspect.reasons import explain
    from gradus.tasks.runs.precedents import precedents

    home = Home.from_environment()
    folder = run_folder(home.runs, run)
    chosen = chosen_calls(folder, stage, RerunRounds(round_index))
    found = explain(Store(home.lake), precedents(home.runs), folder, lambda key: key in chosen)

    def render(_: object) -> None:
        for row in found:
            line(f"{label(row['stage'], row['round'], row['purpose'])}: {row['status']}: {row['why']}")

    answer({"run": folder.name, "calls": found}, as_json, render)


def sql(
    query: Annotated[str, typer.Argument(help="a SELECT over samples, runs, stages, metrics, or the tables")],
    run: Annotated[
        str | None,
        typer.Option("--run", help="only what this run made, reused or was given", autocompletion=completion.runs),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="rows shown; 0 for all (a terminal: 100)")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask any question of the lake.

    samples has a row for each rollout that a run used (run, round, purpose, reward, correct, completion ...); runs,
    stages and metrics tell what was done; below them are the tables problems, hints, plan, rollouts, scores,
    difficulty, evaluations, each with its artifact. `show tables` and `describe samples` are queries too.
    """
    from gradus.flows.console.query_rows import print_json, print_rows
    from gradus.tasks.inspect.sql_views import ask

    with ask(Home.from_environment(), query, run, aside) as found:
        if as_json:
            print_json(found, limit or 0)
        else:
            print_rows(found, limit)


def methods(as_json: AsJson = False) -> None:
    """List stages, filters, rankings, samplers, hints, engines, rewards, advantages, losses, with every setting."""
    from gradus.flows.console.methods_table import render_methods
    from gradus.tasks.inspect.catalogue import catalogue

    answer(catalogue(), as_json, render_methods)


RUN_VERBS = (train, demo, rerun)
"""The verbs that are flows."""


def register_runs(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    for verb in RUN_VERBS:
        app.command(verb.__name__)(may_wait(verb))
    for verb in (show, why, sql, methods):
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
    """What the policy gained over the one it started from, on the same problems and seeds."""
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
