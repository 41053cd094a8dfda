"""The verbs about whole runs: train, demo, rerun, runs, show, sql, methods."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flows.cli_stages import AsJson, Sets
from flows.config import Recipe, load_recipe
from flows.console import answer, aside, fields, line, table
from flows.environment import api
from tasks.checks import check_filters, check_inputs, check_rewards
from tasks.settings import Home

Json = Mapping[str, Any]
Engine = Annotated[str | None, typer.Option(help="which engine samples")]
Rounds = Annotated[int | None, typer.Option(min=0, help="rounds of curate, rollout, score, update")]
Overlap = Annotated[int | None, typer.Option(min=0, max=1, help="1: generate the next round during an update")]
REASONS = 5
"""For how many runs, newest first, `gradus runs` says why they did not finish."""
RunName = Annotated[str | None, typer.Option("--run", help="name of the run; the recipe's name and digest otherwise")]


def train(
    recipe: Annotated[str, typer.Argument(help="a .toml file or a bundled recipe")],
    rounds: Rounds = None,
    engine: Engine = None,
    overlap: Overlap = None,
    sets: Sets = None,
    run: RunName = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe; the same command goes on where it stopped."""
    chosen = [*(sets or []), *([f"rollout.engine={engine}"] if engine else [])]
    loaded = load_recipe(recipe, chosen, rounds=rounds, overlap=overlap)
    _check(loaded)
    with api() as ready:
        from flows import runs  # noqa: PLC0415

        ready()
        answer(runs.train_flow(loaded, run), as_json, render_run)


def _check(recipe: Recipe) -> None:
    """Refuse a recipe whose files or names are not there, before anything starts."""
    lake = Home.from_environment().lake
    check_inputs(lake, problems=[recipe.problems, recipe.evaluate.problems], policy=recipe.policy)
    check_rewards(recipe.score)
    check_filters(recipe.curate.filters)


def demo(
    rounds: Rounds = None, engine: Engine = None, sets: Sets = None, run: RunName = None, as_json: AsJson = False
) -> None:
    """The whole loop on bundled problems with the bundled policy, on a CPU, in minutes."""
    with api() as ready:
        from flows import runs  # noqa: PLC0415

        ready()
        answer(runs.demo(sets or [], engine, rounds, run), as_json, render_run)


def rerun(
    run: Annotated[str, typer.Argument(help="a run, as `gradus runs` lists it")],
    stage: Annotated[str, typer.Argument(help="the stage to run again")],
    round_index: Annotated[int | None, typer.Option("--round", help="in this round only")] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Run one stage of a run again, changed or not; what lies upstream is reused."""
    with api() as ready:
        from flows import runs  # noqa: PLC0415

        ready()
        answer(runs.rerun(run, stage, round_index, sets or []), as_json, render_run)


def list_runs(as_json: AsJson = False) -> None:
    """List the runs, newest first."""
    from tasks.history import list_runs as read  # noqa: PLC0415

    found = read(Home.from_environment().runs)

    def render(result: Json) -> None:
        rows = [tuple(r[k] for k in ("run", "verb", "status", "stages", "reused", "seconds")) for r in result["runs"]]
        table("", ("run", "verb", "status", "stages run", "reused", "seconds"), rows)
        for run in [r for r in result["runs"] if r["error"]][:REASONS]:
            line(f"{run['run']}: {run['error']}")

    answer({"runs": found}, as_json, render)


def show(run: Annotated[str, typer.Argument(help="a run, as `gradus runs` lists it")], as_json: AsJson = False) -> None:
    """Show what a run did: every stage attempt, its artefact and its time."""
    from tasks.history import read_run  # noqa: PLC0415

    result = read_run(Home.from_environment().runs, run)

    def render(shown: Json) -> None:
        line(f"{shown['run']}: {shown['status']}{': ' if shown['error'] else ''}{shown['error']}")
        keys = ("stage", "round", "purpose", "status", "seconds", "output")
        table("", keys, [tuple(row[k] for k in keys) for row in shown["attempts"]])

    answer(result, as_json, render)


def sql(
    query: Annotated[str, typer.Argument(help="a SELECT over samples, runs, stages, metrics, or the tables")],
    run: Annotated[str | None, typer.Option("--run", help="only what this run made, reused or was given")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="rows shown; 0 for all (a terminal: 100)")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask any question of the lake.

    samples has a row for each rollout that a run used (run, round, purpose, reward, correct, completion ...); runs,
    stages and metrics tell what was done; below them are the tables problems, hints, plan, rollouts, scores,
    difficulty, evaluations, each with its artefact. `show tables` and `describe samples` are queries too.
    """
    from flows.console_rows import print_json, print_rows  # noqa: PLC0415
    from tasks.asking import ask  # noqa: PLC0415

    with ask(Home.from_environment(), query, run, aside) as found:
        if as_json:
            print_json(found.columns, found.batches, limit or 0)
        else:
            print_rows(found.columns, found.batches, limit)


def methods(as_json: AsJson = False) -> None:
    """List the registered filters, samplers, hints, rewards, advantages, losses and every setting."""
    from tasks.catalogue import catalogue  # noqa: PLC0415

    def render(result: Json) -> None:
        for kind, entries in result.items():
            table(kind, ("name", "what"), list(entries.items()))

    answer(catalogue(), as_json, render)


RUN_VERBS = (train, demo, rerun)
"""The verbs that are flows."""


def register_runs(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    for verb in (*RUN_VERBS, show, sql, methods):
        app.command(verb.__name__)(verb)
    app.command("runs")(list_runs)


def render_run(result: Json) -> None:
    """The end of a training run: accuracy before and after, newly solved problems, time per stage, where to look."""
    before, after = result["before"], result["after"]
    rows = [
        (domain, _accuracy(before["per_domain"].get(domain)), _accuracy(cell))
        for domain, cell in sorted(after["per_domain"].items())
    ]
    rows.append(("all", _accuracy(before["pass_at"]["1"]), _accuracy(after["pass_at"]["1"])))
    table("pass@1 on held-out problems (95 % interval)", ("domain", "before", "after"), rows)
    stages = [(name, s["ran"], s["reused"], f"{s['seconds']:.1f}") for name, s in result["stages"].items()]
    table("stages", ("stage", "ran", "reused", "seconds"), stages)
    _gain(after.get("versus", {}))
    facts = ("run", "rounds", "updates", "tokens_generated", "tokens_trained", "seconds", "out")
    fields({key: _count(result[key]) for key in facts})
    line(f"look: `gradus ui` (Prefect, MLflow), `gradus show {result['run']}`, `gradus sql 'select ...'`")


def _gain(versus: Json) -> None:
    """What the policy gained over the one it started from, on the same problems and seeds."""
    if not versus:
        return
    gain = versus["gain"]
    low, high = 100 * gain["low"], 100 * gain["high"]
    line(f"gain in pass@1: {100 * gain['value']:.1f} points (95 % interval {low:.1f} to {high:.1f})")
    line(
        f"{versus['newly_solved']} problems that no rollout solved at the start are solved now, "
        f"{versus['newly_lost']} the other way round (of {versus['problems']})"
    )


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _accuracy(cell: Json | None) -> str:
    if not cell:
        return "-"
    value = cell.get("value", cell.get("pass_at_1"))
    return f"{value:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
