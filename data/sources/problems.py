"""Rows -> a problems table: formats applied, duplicates and conflicts refused, everything refused counted.

And texts that somebody else wrote for problems: rows `problem, source, text`, several a problem; `problem` is an id or
a question, without regard to case and spaces, and `text` is taken as it stands.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa

from gradus.data.errors import BadInputError, shortened
from gradus.data.lake.schema import PROBLEMS, cast_to_schema
from gradus.data.records import Problem, Row
from gradus.data.sources.formats import FIELDS, FORMATS, Answers, UnusableRowError, content_id, detect, plain
from gradus.data.sources.reading import Located, Refused, read_rows
from gradus.data.sources.tabular import Renamed

BATCH_ROWS = 4096
_GIVEN = "answer_given"
_AS_READ = PROBLEMS.arrow.append(pa.field(_GIVEN, pa.string()))


def problems_table(
    rows: Iterator[Located],
    refused: Refused,
    *,
    name: str,
    format_name: str,
    columns: Mapping[str, str],
    strict: bool,
    keep_duplicates: bool = False,
    answers: Answers = "required",
) -> pa.Table:
    """Read every row; raise the first refusal if `strict`, BadInputError if no row is left."""
    first = next(rows, None)
    renamed = Renamed(columns, name)
    chosen = _format(format_name, first, renamed)
    batches: list[pa.RecordBatch] = []
    given = chain([first] if first else [], rows)
    as_problem = partial(plain, answers=answers) if chosen == "plain" else FORMATS[chosen]
    usable = _usable(given, refused, name, as_problem, renamed, strict, keep_duplicates=keep_duplicates)
    while block := list(islice(usable, BATCH_ROWS)):
        batches.append(pa.RecordBatch.from_pylist(block, schema=_AS_READ))
    renamed.refuse_unknown()
    if strict and refused.reasons:
        raise BadInputError(refused.examples[0], hint="correct that row or leave out --strict")
    if not batches:
        reasons = ", ".join(f"{reason}: {n}" for reason, n in refused.reasons.most_common()) or "it has no rows"
        raise BadInputError(f"no row of {name} can be used ({reasons})", hint=_next_step(refused, first))
    table = pa.Table.from_batches(batches)
    as_compared = table.column(_GIVEN).null_count == table.num_rows
    return cast_to_schema(table.drop_columns(_GIVEN) if as_compared else table, PROBLEMS)


def _next_step(refused: Refused, first: Located | None) -> str:
    """Return the hint to rename a column if rows lack a field, with the columns there are; else the first bad row."""
    if not (lacking := [field for field in FIELDS if f"no {field}" in refused.reasons]):
        first_bad = next(iter(refused.examples), "")
        return f"correct the file (first {first_bad})" if first_bad else "give a file with a problem on each line"
    field = max(lacking, key=lambda name: refused.reasons[f"no {name}"])
    columns = f"; its columns are {shortened(', '.join(map(str, first.row)))}" if first and first.row else ""
    none = "; if there are none, `--set answers=optional`" if field == "answer" else ""
    return (
        f"if a column has another name, `gradus ingest FILE --map {field}=COLUMN` (in a recipe ingest.columns){none}"
        f"{columns}"
    )


def _format(format_name: str, first: Located | None, renamed: Renamed) -> str:
    if format_name != "auto":
        return format_name
    if first is None:
        return "plain"
    if isinstance(metadata := first.row.get("metadata"), dict) and "source_dataset" in metadata:
        return "reasoning"
    return detect(renamed(first.row))


def _usable(
    rows: Iterator[Located],
    refused: Refused,
    name: str,
    as_problem: Callable[[Row], Problem],
    renamed: Renamed,
    strict: bool,
    *,
    keep_duplicates: bool,
) -> Iterator[Problem]:
    golds: dict[str, str | None] = {}
    ids: set[str] = set()
    contents: Counter[str] = Counter()
    for located in rows:
        if strict and refused.reasons:
            return
        try:
            problem = as_problem(renamed(located.row))
            if not keep_duplicates:
                _refuse_duplicate(problem, golds)
        except UnusableRowError as reason:
            refused.add(str(reason), located.place)
            continue
        problem["problem_id"] = problem["problem_id"] or _own_id(problem, contents)
        if problem["problem_id"] in ids:
            refused.add("problem_id occurs twice", located.place)
            continue
        ids.add(problem["problem_id"])
        problem["source"] = problem["source"] or name
        yield problem


def _own_id(problem: Problem, contents: Counter[str]) -> str:
    """Return the id of a problem without one: that of its content, with a number from the second of the same on."""
    found = content_id(problem)
    contents[found] += 1
    return found if contents[found] == 1 else f"{found}-{contents[found]}"


def question_key(problem: Problem) -> str:
    """Return the text of a problem by which it is recognised: without regard to case and to how it is spaced."""
    return folded(str(problem["question"] or problem["messages"]))


def folded(text: str) -> str:
    """Return a text in one case, with one space for all that are together."""
    return " ".join(text.casefold().split())


def _refuse_duplicate(problem: Problem, golds: dict[str, str | None]) -> None:
    key = question_key(problem)
    if key in golds:
        raise UnusableRowError("duplicate question" if golds[key] == problem["answer"] else "conflicting duplicate")
    golds[key] = problem["answer"]


def read_traces(path: Path, problems: Sequence[Problem], refused: Refused) -> list[Row]:
    """Return problem_id, completion and source, null if the file names none, of its rows that belong to the problems.

    Raise BadInputError if none does.
    """
    by_name = {question_key(problem): problem["problem_id"] for problem in problems}
    by_name |= {problem["problem_id"]: problem["problem_id"] for problem in problems}
    found: list[Row] = []
    for located in read_rows(path, refused):
        trace = _trace(located.row, by_name)
        if isinstance(trace, str):
            refused.add(trace, located.place)
        else:
            found.append(trace)
    if not found:
        reasons = "; ".join(refused.examples) or "it has no rows"
        hint = "give the columns problem (its id or its question) and text, and source if there are several"
        raise BadInputError(f"no row of {path} is a completion of a training problem: {reasons}", hint=hint)
    return found


def _trace(row: Row, by_name: Mapping[str, str]) -> Row | str:
    """A row as a trace, or why it is none."""
    named, text, source = (row.get(key) for key in ("problem", "text", "source"))
    if named is None or text is None:
        return "no problem" if named is None else "no text"
    if not isinstance(text, str) or not isinstance(source, str | None):
        return "text or source is not text"
    if not text.strip():
        return "empty text"
    problem = by_name.get(str(named)) or by_name.get(folded(str(named)))
    found: Row = {"problem_id": problem, "completion": text, "source": source}
    return found if problem else "its problem is not among the training problems"
