"""The verbs about whole runs: train, demo, rerun, runs, show, sql, methods."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from flows.cli_stages import AsJson, Sets
from flows.console import answer, fields, line, table

Json = Mapping[str, Any]
Engine = Annotated[str | None, typer.Option(help="which engine samples")]
Rounds = Annotated[int | None, typer.Option(min=0, help="rounds of curate, rollout, score, update")]
Overlap = Annotated[int | None, typer.Option(min=0, max=1, help="1: generate the next round during an update")]
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
    from flows.config import load_recipe  # noqa: PLC0415

    chosen = [*(sets or []), *([f"rollout.engine={engine}"] if engine else [])]
    loaded = load_recipe(recipe, chosen, rounds=rounds, overlap=overlap)
    from flows import runs  # noqa: PLC0415

    answer(runs.train_flow(loaded, run), as_json, render_run)


def demo(
    rounds: Rounds = None, engine: Engine = None, sets: Sets = None, run: RunName = None, as_json: AsJson = False
) -> None:
    """The whole loop on bundled problems with the bundled policy, on a CPU, in minutes."""
    from flows import runs  # noqa: PLC0415

    answer(runs.demo(sets or [], engine, rounds, run), as_json, render_run)


def rerun(
    run: Annotated[str, typer.Argument(help="a run, as `gradus runs` lists it")],
    stage: Annotated[str, typer.Argument(help="the stage to run again")],
    round_index: Annotated[int | None, typer.Option("--round", help="in this round only")] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Run one stage of a run again, changed or not; what lies upstream is reused."""
    from flows import runs  # noqa: PLC0415

    answer(runs.rerun(run, stage, round_index, sets or []), as_json, render_run)


def list_runs(as_json: AsJson = False) -> None:
    """List the runs, newest first."""
    from tasks.history import list_runs as read  # noqa: PLC0415
    from tasks.settings import Home  # noqa: PLC0415

    found = read(Home.from_environment().runs)

    def render(result: Json) -> None:
        rows = [tuple(r[k] for k in ("run", "verb", "status", "stages", "reused", "seconds")) for r in result["runs"]]
        table("", ("run", "verb", "status", "stages run", "reused", "seconds"), rows)

    answer({"runs": found}, as_json, render)


def show(run: Annotated[str, typer.Argument(help="a run, as `gradus runs` lists it")], as_json: AsJson = False) -> None:
    """Show what a run did: every stage attempt, its artefact and its time."""
    from tasks.history import read_run  # noqa: PLC0415
    from tasks.settings import Home  # noqa: PLC0415

    result = read_run(Home.from_environment().runs, run)

    def render(shown: Json) -> None:
        line(f"{shown['run']}: {shown['status']}")
        keys = ("stage", "round", "purpose", "status", "seconds", "output")
        table("", keys, [tuple(row[k] for k in keys) for row in shown["attempts"]])

    answer(result, as_json, render)


def sql(
    query: Annotated[str, typer.Argument(help="SQL over the tables problems, rollouts, scores, difficulty ...")],
    run: Annotated[str | None, typer.Option("--run", help="only the artefacts of this run")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask any question of the lake; the column `artefact` tells which artefact a row is from."""
    from tasks.history import query as ask  # noqa: PLC0415
    from tasks.settings import Home  # noqa: PLC0415

    result = ask(Home.from_environment(), query, run)
    answer(result, as_json, lambda r: table("", tuple(r["columns"]), [tuple(row) for row in r["rows"]]))


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
    if before["unjudged"] or after["unjudged"]:
        rows.append(("judged rollouts", _coverage(before), _coverage(after)))
    table("pass@1 on held-out problems (95 % interval)", ("domain", "before", "after"), rows)
    stages = [(name, s["ran"], s["reused"], f"{s['seconds']:.1f}") for name, s in result["stages"].items()]
    table("stages", ("stage", "ran", "reused", "seconds"), stages)
    _gain(after.get("versus", {}))
    facts = ("run", "rounds", "updates", "tokens_generated", "tokens_trained", "seconds", "out")
    fields({key: _count(result[key]) for key in facts})
    line(f"look: `gradus ui` (Prefect, MLflow), `gradus show {result['run']}`, `gradus sql 'select ...'`")


def _coverage(evaluation: Json) -> str:
    return f"{evaluation['judged']} of {evaluation['rollouts']}"


def _gain(versus: Json) -> None:
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


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _accuracy(cell: Json | None) -> str:
    if not cell:
        return "-"
    value = cell.get("value", cell.get("pass_at_1"))
    return f"{value:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]"
