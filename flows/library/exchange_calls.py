"""Rollouts and checkpoints taken out to other systems, and their rollouts taken in."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.flows.library.calling import call, run_flow
from gradus.flows.library.results import Run
from gradus.flows.library.texts import mapping
from gradus.flows.parameters import Input, Taken, artifacts, check_finite, named, runs
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, check_inputs, check_no_input, check_out, check_table, full_name

if TYPE_CHECKING:
    from gradus.flows.exchange import Imported


@call
def export(
    what: Annotated[Run | str, Taken("a checkpoint; or, with --as, a run or rollouts", complete=runs, argument=True)],
    to: Annotated[Input, Taken("the folder to write to")],
    *,
    as_: Annotated[str | None, Taken("verl, trl, trinity, openai or parquet", "--as")] = None,
    scores: Annotated[
        str | None, Taken("scores of the rollouts, if they have several", complete=artifacts("scores"))
    ] = None,
    where: Annotated[
        str | None, Taken('an SQL condition on the rows, such as "correct" or "reward > 0.5 and hint_level = 0"')
    ] = None,
    merge: Annotated[bool, Taken("merge an adapter into its base", "--merge")] = False,
    base: Annotated[
        str | None,
        Taken("what an adapter calls its base, a folder or a hub id@revision, instead of what you called it"),
    ] = None,
    on_damage: OnDamage = refuse,
) -> Mapping[str, object]:
    """Write a checkpoint as a model folder with its card, or rollouts, of a run too, as another system writes its own.

    `as_` is verl, trl, trinity, openai or parquet; `where` is a condition in SQL on the rows of `samples`. Return what
    was written: rows, files and what the format lacks.
    """
    home, folder, name = Home.from_environment(), Path(to), named(what)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UsageError(f"--to {to} is {'a file' if folder.is_file() else 'not empty'}", hint="give a new folder")
    check_out(str(to))
    if as_ is not None and (merge or base is not None):
        raise UsageError(f"{'--merge' if merge else '--base'} goes with a checkpoint", hint="leave it out")
    if base is not None and (merge or not base.strip()):
        what_is = "goes with an adapter that is not merged" if merge else "is empty"
        raise UsageError(f"--base {what_is}", hint="leave it out")
    if as_ is None and where is not None:
        raise UsageError("--where goes with rollouts", hint="give --as FORMAT, or leave it out")
    if as_ is None:
        return _checkpoint(home, name, folder, scores, base or "", merge=merge, on_damage=on_damage)
    from gradus.data.lake.store import Store
    from gradus.tasks.inspect.exchange.rollouts import check_format, uses_of, write_rollouts
    from gradus.tasks.runs.history import run_folder

    check_format(as_, where)
    if not REFERENCE.fullmatch(name):
        run_folder(home.runs, name)  # refused before a lake is made
    store = Store(home.lake)
    uses = uses_of(store, home.runs, name, scores, on_damage)
    return {**write_rollouts(store, uses, as_, folder, on_damage, where or ""), "out": str(folder)}


def _checkpoint(
    home: Home, what: str, to: Path, scores: str | None, base: str, *, merge: bool, on_damage: OnDamage
) -> Mapping[str, object]:
    from gradus.data.lake.store import Ref, Store
    from gradus.tasks.inspect.exchange.checkpoint import write_checkpoint

    table = what.partition("/")[0] if REFERENCE.fullmatch(what) else ""
    if table != "checkpoints":
        hint = "give checkpoints/DIGEST (`gradus show RUN` lists them), or --as FORMAT for rollouts"
        raise UsageError(f"{what} is no checkpoint" if not table else f"{what} is a {table} artifact", hint=hint)
    if scores is not None:
        raise UsageError("--scores goes with rollouts", hint="leave it out")
    ref = Ref.parse(full_name(home.lake, what))
    store = Store(home.lake)
    files = write_checkpoint(store, home.runs, ref, to, merge=merge, base_name=base, on_damage=on_damage)
    return {"files": files, "out": str(to)}


@call
def import_rollouts(
    source: Annotated[Input, Taken("a file, or a folder of files, that another system wrote", argument=True)],
    system: Annotated[str, Taken("verl, trl, trinity, open-instruct, art, or table: your own", "--from")],
    *,
    columns: Annotated[
        Mapping[str, str] | Sequence[str] | None, Taken("rename a column, ours=theirs; repeatable", "--map")
    ] = None,
    tokenizer: Annotated[
        Input | None, Taken("folder of the model whose tokenizer makes texts of token ids (open-instruct)")
    ] = None,
    policy: Annotated[
        Input | None,
        Taken(
            "the policy that sampled them, a folder or an artifact, to learn from them (open-instruct)",
            complete=artifacts("checkpoints"),
        ),
    ] = None,
    temperature: Annotated[float, Taken("temperature that they were sampled at, beside --policy", least=1e-6)] = 1.0,
    correct_at: Annotated[
        float | None, Taken("a row without a verdict is correct if its reward is at least this")
    ] = None,
    problems: Annotated[
        Input | None,
        Taken(
            "problems that the rows of a table name: a file, an artifact, bundled:train or bundled:heldout",
            complete=artifacts("problems"),
        ),
    ] = None,
    out: Annotated[
        Input | None, Taken("also write the difficulty here, with lengths of completions (.parquet or .jsonl)")
    ] = None,
) -> "Imported":
    """Take in rollouts of another system, with their rewards, as rollouts, scores, problems and difficulty.

    `system` is verl, trl, trinity, open-instruct or art, or table for rows of your own: `problem_id` or `question`,
    `reward` or `correct`, and `completion`, `completion_tokens`, `sample`, `round` if there are any. Return names of
    the artifacts, and what the files lack.
    """
    from gradus.tasks.inspect.exchange.rollouts import check_source

    files, given = named(source), mapping(columns or ())
    texts = {"tokenizer": tokenizer, "policy": policy, "problems": problems, "out": out}
    inputs = {name: None if value is None else named(value) for name, value in texts.items()}
    model, sampler, asked, place = inputs.values()
    for option, number in (("--correct-at", correct_at), ("--temperature", temperature)):
        check_finite(option, number)
    check_source(Path(files), system, Path(model) if model else None, sampler, given, asked)
    check_inputs(Home.from_environment().lake, policy=sampler, problems=asked)
    if place is not None:
        check_table(Path(place), kinds=(".parquet", ".jsonl"))
        check_no_input(place, (files, asked))
    rewards = {"temperature": temperature, "correct_at": correct_at}
    return run_flow("exchange:import_rollouts", source=files, system=system, columns=given, **inputs, **rewards)
