"""Rollouts of other systems: theirs are read into tables, ours are written as they write their own.

Read are the files of a folder in order, unusable rows counted. Each row of a user's own table names its problem, and
the first that cannot be used is an error. Written are the rollouts of a run, or one artifact.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import pyarrow as pa
from tokenizers import Tokenizer

from gradus.data.arrays import looked_up
from gradus.data.curation.by_use import of_use
from gradus.data.curation.uses import LEARN
from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, UsageError, refuse, shortened
from gradus.data.exchange.formats import FORMATS, Format
from gradus.data.exchange.row import Exchanged
from gradus.data.exchange.tables import tables_of
from gradus.data.files import replacing
from gradus.data.lake.store import Ref, Store
from gradus.data.nearest import did_you_mean
from gradus.data.records import Problem
from gradus.data.sources.formats import UnusableRowError, content_id
from gradus.data.sources.problems import folded
from gradus.data.sources.reading import Refused, read_rows
from gradus.data.sources.tabular import Renamed, refuse_fields
from gradus.tasks.artifacts.resolve import write_rows
from gradus.tasks.inspect.token_pieces import Tokenizers, texts_of, tokenizer_of
from gradus.tasks.preflight.checks import REFERENCE, full_name
from gradus.tasks.runs.history import is_learned, run_folder, run_folders
from gradus.tasks.runs.lineage import Lineage, Run, Use

System = Literal["verl", "trl", "trinity", "open-instruct", "art", "table"]
"""The systems whose files are read; table is a user's own."""
_METADATA = "_metadata.jsonl"
"""End of the name of open-instruct's file about its run, which lies beside its shards."""
_NUMBER = re.compile(r"(\d+)")
OWN_HINT = "a row has problem_id or question, and reward or correct; --map ours=theirs renames columns"
PARQUET = "parquet"
"""The format that is ours: every column of the rollouts, with question, gold answer and scores beside them."""
CONVERSATIONS = "openai"
_FIELDS = tuple(field.name for field in fields(Exchanged) if field.name != "logprobs")
_SCORED = ("reward", "correct", "components", "outcome", "extracted", "verifier")


class NoneRefused(Refused):
    """No row may be refused: the first is an error."""

    def add(self, reason: str, place: str) -> None:
        """Raise BadInputError for a row."""
        raise BadInputError(f"{place}: {reason}", hint=OWN_HINT)


class ProblemNames:
    """The problems that the rows of a table may name, any if there are none, and the samples that it had so far."""

    def __init__(self, problems: pa.Table | None) -> None:
        """Index the problems by id and question; of several with one question the first counts."""
        names = ("problem_id", "question")
        ids, questions = ((), ()) if problems is None else (problems.column(name).to_pylist() for name in names)
        self._any = problems is None
        self._known = frozenset[str](ids)
        pairs = zip(reversed(ids), reversed(questions), strict=True)
        self._by_question: dict[str, str] = {folded(question or ""): name for name, question in pairs}
        self._places: dict[tuple[str, int, int], str] = {}

    def of(self, row: Exchanged, place: str) -> str:
        """Return the id of a row's problem; UnusableRowError for one not known, and for a sample once more."""
        name = row.problem_id or self._of_question(row.prompt)
        if not self._any and name not in self._known:
            raise UnusableRowError(f"{shortened(name)} is none of the {len(self._known)} problems")
        if row.sample is not None:
            before = self._places.setdefault((name, row.round, row.sample), place)
            if before != place:
                raise UnusableRowError(f"sample {row.sample} of {shortened(name)} was there before: {before}")
        return name

    def _of_question(self, question: str) -> str:
        if self._any:
            return content_id(cast("Problem", {"question": question, "messages": None}))
        if (found := self._by_question.get(folded(question))) is None:
            raise UnusableRowError(f"its question is that of none of the {len(self._known)} problems")
        return found


def reader(name: str) -> Format:
    """Return the format of a system; UsageError if its files are not read."""
    known: tuple[str, ...] = get_args(System)
    if name not in known:
        listed = f"give one of: {', '.join(known)}"
        raise UsageError(f"--from {shortened(name)}: there is no such format", hint=did_you_mean(name, known, listed))
    return FORMATS[name]


def check_source(
    path: Path,
    name: str,
    tokenizer: Path | None,
    policy: str | None,
    columns: Mapping[str, str] | None = None,
    problems: str | None = None,
) -> None:
    """Raise UsageError for no file, tokens without tokenizer, a policy beside texts, problems beside prompts."""
    found = reader(name)
    if problems is not None and not found.strict:
        raise UsageError("--problems goes with --from table", hint="leave it out")
    refuse_fields(columns or {}, found.columns, f"a file of {name}")
    if not path.exists():
        raise UsageError(f"there is no file or folder {shortened(str(path))}", hint="check the name")
    if not found.texts and tokenizer is None and policy is None:
        raise UsageError(f"files of {name} hold token ids, no texts", hint="give --tokenizer FOLDER of the model")
    if found.texts and policy is not None:
        raise UsageError(
            f"files of {name} hold no token ids with log-probs: no policy can learn from them",
            hint="leave --policy out",
        )


def read_incoming(
    path: Path,
    name: str,
    columns: Mapping[str, str],
    tokenizer: Path | None = None,
    correct_at: float | None = None,
    problems: pa.Table | None = None,
) -> tuple[dict[str, pa.Table], int, dict[str, int]]:
    """Read a file, or all files of a folder; return the tables, the number of files and refused rows by reason.

    `columns` renames what a row has, theirs by the name it should have. A row without a verdict is correct from the
    reward `correct_at` on: 1 for a user's own table without verdicts whose rewards are 0 and 1. Its rows name one of
    `problems`, if they are given, by id or question. BadInputError for no usable row, and for the first unusable one of
    a user's own.
    """
    found = reader(name)
    refuse_fields(columns, found.columns, f"a file of {name}")
    files, renamed = _files(path, found.suffix), Renamed(columns, str(path))
    refused = NoneRefused() if found.strict else Refused()
    names = ProblemNames(problems) if found.strict else None
    rows = [row for file in files for row in _rows(file, found, renamed, refused, names)]
    renamed.refuse_unknown()
    if not rows:
        text = refused.examples[0] if refused.examples else f"{path} holds no rows"
        hint = OWN_HINT if found.strict else "is --from right?"
        raise BadInputError(f"no row can be read as a rollout of {name}: {text}", hint=hint)
    if not found.texts and tokenizer is not None:
        known = tokenizer_of(tokenizer)
        prompts = texts_of(known, [row.prompt_tokens or () for row in rows])
        completions = texts_of(known, [row.completion_tokens or () for row in rows])
        both = zip(rows, prompts, completions, strict=True)
        rows = [replace(row, prompt=prompt, completion=completion) for row, prompt, completion in both]
    if found.strict and correct_at is None and all(row.correct is None and row.reward in (0, 1) for row in rows):
        correct_at = 1.0
    return tables_of(rows, name, correct_at), len(files), dict(refused.reasons)


def _files(path: Path, suffix: str) -> list[Path]:
    """Return the files of a folder and those below it in the order of the numbers in their names; a file as it is."""
    if path.is_file():
        return [path]
    files = [file for file in path.rglob(f"*{suffix}") if file.is_file() and not file.name.endswith(_METADATA)]
    if link := next(filter(Path.is_symlink, files), None):
        raise BadInputError(f"{shortened(str(link))} is a link", hint="put the file itself there")
    if not files:
        raise BadInputError(f"{path} has no {suffix} file", hint="give the folder that the other system wrote to")

    def in_order(file: Path) -> list[tuple[int, str]]:  # 2.jsonl comes before 10.jsonl
        return [(int(part), "") if part.isdigit() else (0, part) for part in _NUMBER.split(str(file))]

    return sorted(files, key=in_order)


def _rows(
    file: Path, found: Format, renamed: Renamed, refused: Refused, names: ProblemNames | None
) -> Iterator[Exchanged]:
    for located in read_rows(file, refused):
        try:
            row = found.read(renamed(located.row))
            row = replace(row, problem_id=names.of(row, located.place)) if names else row
        except UnusableRowError as reason:
            if found.strict:
                there = f"; its columns are {shortened(', '.join(map(str, located.row)))}" if located.row else ""
                raise BadInputError(f"{located.place}: {reason}", hint=f"{OWN_HINT}{there}") from None
            refused.add(str(reason), located.place)
        else:
            if found.step_in_name:  # and its groups are of that file alone
                step = ([0] + [int(part) for part in _NUMBER.findall(file.stem) if len(part) < 10])[-1]
                row = replace(row, round=step, group_id=f"{file.stem}/{row.group_id}")
            yield row


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

    Of a run those that its updates could learn from: no profile, no evaluations. Raise UsageError if there are none, or
    if an artifact has several scores and none is named.
    """
    if REFERENCE.fullmatch(what):
        return [_use_of(store, runs, Ref.parse(full_name(store.root, what)), scores, on_damage)]
    if scores is not None:
        raise UsageError("--scores goes with one rollouts artifact", hint="a run has scores of its own")
    folder = run_folder(runs, what)
    lineage = Lineage(store, [Run(folder, on_damage)], whole_lake=False, on_damage=on_damage)
    lineage.used()  # their problems must be there too
    chosen = [use for use in lineage.uses if is_learned(use.purpose or "")]
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
        listed = ", ".join(map(str, known[:5]))
        raise UsageError(f"{ref} was scored {len(known)} times", hint=f"give --scores, one of {listed}")
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
    from gradus.data.lake.queries import Relation, select  # noqa: PLC0415 - DuckDB, for this option alone

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
    """Yield the rows of each use, of a run's those to learn from; one with a damaged artifact is left out whole."""
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
        rows = looked_up(rows, "rollout_id", store.read(use.scores, ["rollout_id", *_SCORED]), _SCORED)
    if problems is not None:
        asked = [name for name in ("question", "answer") if name not in rows.column_names]
        rows = looked_up(rows, "problem_id", problems, asked)
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
