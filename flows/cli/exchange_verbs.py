"""The verbs that take rollouts and checkpoints out to other systems, and their rollouts in: export, import."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gradus.data.errors import UsageError
from gradus.flows.cli import completion
from gradus.flows.cli.stage_verbs import AsJson, Maps, mapping
from gradus.flows.cli.waiting import may_wait
from gradus.flows.console.output import answer, aside
from gradus.flows.environment import api
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, check_inputs, check_out, full_name

if TYPE_CHECKING:
    from gradus.tasks.inspect.exchange.incoming import System

What = Annotated[
    str, typer.Argument(help="a checkpoint; or, with --as, a run or rollouts", autocompletion=completion.runs)
]
As = Annotated[str | None, typer.Option("--as", help="verl, trl, trinity, openai or parquet")]
To = Annotated[Path, typer.Option("--to", help="the folder to write to")]
Scores = Annotated[
    str | None,
    typer.Option(help="scores of the rollouts, if they have several", autocompletion=completion.artifacts("scores")),
]
Source = Annotated[str, typer.Argument(help="a file, or a folder of files, that another system wrote")]
From = Annotated[str, typer.Option("--from", help="verl, trl, trinity, open-instruct or art")]
Merge = Annotated[bool, typer.Option("--merge", help="merge an adapter into its base")]
Base = Annotated[
    str | None,
    typer.Option(help="what an adapter calls its base, a folder or a hub id@revision, instead of what you called it"),
]
ModelFolder = Annotated[
    str | None, typer.Option(help="folder of the model whose tokenizer makes texts of token ids (open-instruct)")
]
Sampler = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="the policy that sampled them, a folder or an artifact, to learn from them (open-instruct)",
        autocompletion=completion.artifacts("checkpoints"),
    ),
]
SampledAt = Annotated[
    float, typer.Option("--temperature", min=1e-6, help="temperature that they were sampled at, beside --policy")
]


def export(
    what: What,
    to: To,
    as_: As = None,
    scores: Scores = None,
    merge: Merge = False,
    base: Base = None,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as a model folder with its card, or rollouts as another system writes its own."""
    home = Home.from_environment()
    if to.is_file() or (to.is_dir() and any(to.iterdir())):
        raise UsageError(f"--to {to} is {'a file' if to.is_file() else 'not empty'}", hint="give a new folder")
    check_out(str(to))
    if as_ is not None and (merge or base is not None):
        raise UsageError(f"{'--merge' if merge else '--base'} goes with a checkpoint", hint="leave it out")
    if base is not None and (merge or not base.strip()):
        what_is = "goes with an adapter that is not merged" if merge else "is empty"
        raise UsageError(f"--base {what_is}", hint="leave it out")
    if as_ is None:
        found = _checkpoint(home, what, to, scores, base or "", merge=merge)
    else:
        found = _rollouts(home, what, as_, to, scores)
    answer(found, as_json)


def _checkpoint(home: Home, what: str, to: Path, scores: str | None, base: str, *, merge: bool) -> Mapping[str, object]:
    from gradus.data.lake.store import Ref
    from gradus.data.lake.upgrade import open_lake
    from gradus.tasks.inspect.exchange.checkpoint import write_checkpoint

    table = what.partition("/")[0] if REFERENCE.fullmatch(what) else ""
    if table != "checkpoints":
        raise UsageError(
            f"{what} is no checkpoint" if not table else f"{what} is a {table} artifact",
            hint="give checkpoints/DIGEST (`gradus show RUN` lists them), or --as FORMAT for rollouts",
        )
    if scores is not None:
        raise UsageError("--scores goes with rollouts", hint="leave it out")
    ref = Ref.parse(full_name(home.lake, what))
    files = write_checkpoint(open_lake(home.lake, aside), home.runs, ref, to, merge=merge, base_name=base)
    return {"files": files, "out": str(to)}


def _rollouts(home: Home, what: str, system: str, to: Path, scores: str | None) -> Mapping[str, object]:
    from gradus.data.lake.upgrade import open_lake
    from gradus.tasks.inspect.exchange.outgoing import check_format, uses_of, write_rollouts
    from gradus.tasks.runs.history import run_folder

    check_format(system)
    if not REFERENCE.fullmatch(what):
        run_folder(home.runs, what)  # refused before a lake is made
    store = open_lake(home.lake, aside)
    written = write_rollouts(store, uses_of(store, home.runs, what, scores), system, to)
    return {"rows": written.rows, "files": written.files, "lost": list(written.lost), "out": str(to)}


def import_(
    source: Source,
    system: From,
    maps: Maps = None,
    tokenizer: ModelFolder = None,
    policy: Sampler = None,
    temperature: SampledAt = 1.0,
    as_json: AsJson = False,
) -> None:
    """Take in rollouts of another system, with their rewards, as rollouts, scores, problems and difficulty."""
    from gradus.tasks.inspect.exchange.incoming import check_source

    columns = mapping(maps)
    check_source(Path(source), system, Path(tokenizer) if tokenizer else None, policy)
    check_inputs(Home.from_environment().lake, policy=policy)
    with api() as ready:
        from gradus.flows import exchange

        ready()
        answer(
            exchange.import_rollouts(source, cast("System", system), columns, tokenizer, policy, temperature), as_json
        )


def register_exchange(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    app.command("export")(export)
    app.command("import")(may_wait(import_))
