"""Rollouts of the lake, written as another system writes its own: those of a run, or one artifact."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from tokenizers import Tokenizer

from gradus.data.arrays import positions, take_or_null
from gradus.data.curation.by_use import of_use
from gradus.data.curation.uses import LEARN
from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, UsageError, refuse, shortened
from gradus.data.exchange import FORMATS
from gradus.data.exchange.row import Exchanged
from gradus.data.files import replacing
from gradus.data.lake.queries import Relation, select
from gradus.data.lake.store import Ref, Store
from gradus.data.nearest import did_you_mean
from gradus.tasks.artifacts.copies import write_rows
from gradus.tasks.inspect.token_pieces import Tokenizers, texts_of
from gradus.tasks.preflight.checks import REFERENCE, full_name
from gradus.tasks.runs.history import is_evaluation, run_folder, run_folders
from gradus.tasks.runs.lineage import Lineage, Run, Use

PARQUET = "parquet"
"""The format that is ours: every column of the rollouts, with question, gold answer and scores beside them."""
CONVERSATIONS = "openai"
_PROFILE = "profile"
_FIELDS = tuple(field.name for field in fields(Exchanged) if field.name != "logprobs")
_SCORED = ("reward", "correct", "components", "outcome", "extracted", "verifier")


def check_format(name: str, where: str | None = None) -> None:
    """Raise UsageError if no rollouts are written in that format, or failures would be examples to imitate."""
    known = [*(each for each, found in FORMATS.items() if found.file), PARQUET]
    if name not in known:
        listed = f"give one of: {', '.join(known)}"
        raise UsageError(f"--as {shortened(name)}: there is no such format", hint=did_you_mean(name, known, listed))
    if name == CONVERSATIONS and where is None:
        raise UsageError(
            f"--as {name} writes every completion as one to imitate, failures too",
            hint='give --where correct, or another condition (--where "reward > 0.5", --where true for all)',
        )
    if where is not None and not where.strip():
        raise UsageError("--where is empty", hint="give a condition, such as --where correct")


def uses_of(store: Store, runs: Path, what: str, scores: str | None = None, on_damage: OnDamage = refuse) -> list[Use]:
    """Return the rollouts that `what` names, a run's or an artifact, with their scores; `scores` names those to take.

    Of a run those are meant that its updates could learn from: neither its profile nor its evaluations. Raise
    UsageError if there are none, or if an artifact has several scores and none is named.
    """
    if REFERENCE.fullmatch(what):
        return [_use_of(store, runs, Ref.parse(full_name(store.root, what)), scores, on_damage)]
    if scores is not None:
        raise UsageError("--scores goes with one rollouts artifact", hint="a run has scores of its own")
    folder = run_folder(runs, what)
    lineage = Lineage(store, [Run(folder, on_damage)], whole_lake=False, on_damage=on_damage)
    lineage.used()  # their problems must be there too
    chosen = [use for use in lineage.uses if not is_evaluation(use.purpose or "") and use.purpose != _PROFILE]
    if not chosen:
        raise UsageError(f"run {folder.name} has no rollouts that were trained on", hint="name a rollouts artifact")
    return sorted(chosen, key=lambda use: (use.round or 0, use.purpose != "train", use.purpose or ""))


def _use_of(store: Store, runs: Path, ref: Ref, scores: str | None, on_damage: OnDamage) -> Use:
    if ref.table != "rollouts":
        raise UsageError(f"{ref} is a {ref.table} artifact", hint="give rollouts or a run, or leave out --as")
    if scores is not None:
        return Use(None, None, None, ref, Ref.parse(full_name(store.root, scores)))
    every = [Run(folder, on_damage) for folder in run_folders(runs)]
    lineage = Lineage(store, every, whole_lake=True, on_damage=on_damage)
    known = list(dict.fromkeys(use.scores for use in lineage.uses if use.rollouts == ref and use.scores))
    if len(known) > 1:
        raise UsageError(
            f"{ref} was scored {len(known)} times", hint=f"give --scores, one of {', '.join(map(str, known[:5]))}"
        )
    return Use(None, None, None, ref, known[0] if known else None)


def write_rollouts(
    store: Store, uses: Sequence[Use], name: str, folder: Path, on_damage: OnDamage = refuse, where: str = ""
) -> dict[str, Any]:
    """Write rollouts into a folder in a format, those that meet an SQL condition; files of the same name are replaced.

    Return the number of rows, the names of the files, and sentences on what the format does not hold. Raise UsageError
    for a condition that does not run, or that no row meets.
    """
    tables = list(_whole(store, uses, on_damage))
    if where:
        tables = [_meeting(table, where) for table in tables]
        if not any(table.num_rows for table in tables):
            raise UsageError(f"no rollout meets --where {shortened(where)}", hint="take another condition")
    folder.mkdir(parents=True, exist_ok=True)
    if name == PARQUET:
        table = pa.concat_tables(tables, promote_options="default")
        write_rows(table, folder / "rollouts.parquet")
        return {"rows": table.num_rows, "files": ["rollouts.parquet"], "lost": []}
    found = FORMATS[name]
    by_file: dict[str, list[dict[str, object]]] = {}
    for table in tables:
        for row in _exchanged(store, table, on_damage):
            by_file.setdefault(found.file.format(row.round), []).append(found.write(row))
    for file, rows in by_file.items():
        if found.suffix == ".parquet":
            write_rows(pa.Table.from_pylist(rows), folder / file)
        else:
            with replacing(folder / file) as temporary, temporary.open("w", encoding="utf-8") as lines:
                lines.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    return {"rows": sum(map(len, by_file.values())), "files": sorted(by_file), "lost": list(found.lost)}


def _meeting(rows: pa.Table, where: str) -> pa.Table:
    """Return the rows that meet a user's condition, in their order."""
    placed = rows.append_column("place", pa.array(range(rows.num_rows), pa.int64()))
    query = f"select place from rollouts where ({where}\n) order by place"  # noqa: S608 - the database is locked
    try:
        with select({"rollouts": Relation.of(placed)}, {}, query) as found:
            places = [place for batch in found.batches for place in batch.column(0).to_pylist()]
    except UsageError as error:
        said = error.message.removeprefix("the query did not run: ")
        hint = f"the columns are {', '.join(rows.column_names)}"
        raise UsageError(f"--where {shortened(where)}: {said}", hint=hint) from None
    return rows.take(pa.array(places, pa.int64()))


def _whole(store: Store, uses: Sequence[Use], on_damage: OnDamage) -> Iterator[pa.Table]:
    """Yield the rows of each use; one of which an artifact is damaged or missing is left out whole.

    Of a run those are meant that it could learn from, and no judge's.
    """
    for use in uses:
        try:
            rows = _joined(store, use)
            yield rows if use.run is None else of_use(rows, LEARN)
        except CorruptArtifactError as damage:
            on_damage(damage)


def _joined(store: Store, use: Use) -> pa.Table:
    """Return rollouts with their scores, and with question and gold answer of their problems where those are there."""
    rows, problems = store.read(use.rollouts), _problems(store, use)
    if use.scores is not None:
        rows = _beside(rows, "rollout_id", store.read(use.scores, ["rollout_id", *_SCORED]), _SCORED)
    if problems is not None:
        asked = [name for name in ("question", "answer") if name not in rows.column_names]
        rows = _beside(rows, "problem_id", problems, asked)
    return rows


def _beside(rows: pa.Table, key: str, others: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows with columns of those that have the same key, in the place of their own."""
    at = positions(rows.column(key), others.column(key))
    rows = rows.drop_columns([name for name in names if name in rows.column_names])
    for name in names:
        rows = rows.append_column(name, take_or_null(others.column(name), at))
    return rows


def _problems(store: Store, use: Use) -> pa.Table | None:
    named = [store.manifest(ref).parents.get("problems", []) for ref in (use.scores, use.rollouts) if ref is not None]
    refs = [ref for texts in named for ref in map(Ref.parse, texts) if store.whole(ref) is not None]
    return store.read(refs[0], ["problem_id", "question", "answer"]) if refs else None


def _exchanged(store: Store, rows: pa.Table, on_damage: OnDamage) -> Iterator[Exchanged]:
    """Yield the rows of a table; a prompt is the text of its tokens, or its question if no tokenizer is there."""
    tokenizers = Tokenizers(store, on_damage)
    for batch in rows.to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            parts = dict(cast("list[tuple[str, float]]", row.get("components") or []))
            known: dict[str, Any] = {name: row[name] for name in _FIELDS if row.get(name) is not None}
            known |= {"prompt": _prompt(row, tokenizers.of(row["policy"])), "components": parts}
            yield Exchanged(**known)


def _prompt(row: Mapping[str, object], tokenizer: Tokenizer | None) -> str:
    tokens = row["prompt_tokens"]
    if tokenizer is not None and isinstance(tokens, list) and tokens:
        return texts_of(tokenizer, [tokens])[0]
    question = row.get("question")
    if not isinstance(question, str):
        raise BadInputError(
            f"rollout {row['rollout_id']} has neither a question nor a prompt whose tokenizer is there",
            hint="score it with its problems first, or export it as parquet",
        )
    return question
