"""Rows -> a problems table: formats applied, duplicates and conflicts refused, everything refused counted."""

from collections.abc import Iterator, Mapping
from itertools import chain, islice

import pyarrow as pa

from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PROBLEMS, cast_to_schema
from gradus.data.records import Problem, Row
from gradus.data.sources.formats import FORMATS, UnusableRowError, content_id, detect
from gradus.data.sources.tabular import Located, Refused

BATCH_ROWS = 4096


def problems_table(
    rows: Iterator[Located], refused: Refused, *, name: str, format_name: str, columns: Mapping[str, str], strict: bool
) -> pa.Table:
    """Read every row; raise the first refusal if `strict`, BadInputError if no row is left."""
    first = next(rows, None)
    chosen = _format(format_name, first, columns)
    batches: list[pa.RecordBatch] = []
    usable = _usable(chain([first] if first else [], rows), refused, name, chosen, columns, strict)
    while block := list(islice(usable, BATCH_ROWS)):
        batches.append(pa.RecordBatch.from_pylist(block, schema=PROBLEMS.arrow))
    if strict and refused.reasons:
        raise BadInputError(refused.examples[0], hint="correct that row or leave out --strict")
    if not batches:
        told = ", ".join(f"{reason}: {n}" for reason, n in refused.reasons.most_common()) or "it has no rows"
        raise BadInputError(
            f"no row of {name} can be used ({told})",
            hint="if a column has another name, `gradus ingest FILE --map question=COLUMN` "
            "(in a recipe ingest.columns)",
        )
    return cast_to_schema(pa.Table.from_batches(batches), PROBLEMS)


def _format(format_name: str, first: Located | None, columns: Mapping[str, str]) -> str:
    if format_name != "auto":
        return format_name
    if first is None:
        return "plain"
    if (
        "metadata" in first.row
        and isinstance(first.row["metadata"], dict)
        and "source_dataset" in first.row["metadata"]
    ):
        return "reasoning"
    return detect(_renamed(first.row, columns))


def _usable(
    rows: Iterator[Located], refused: Refused, name: str, chosen: str, columns: Mapping[str, str], strict: bool
) -> Iterator[Problem]:
    golds: dict[str, str | None] = {}
    ids: set[str] = set()
    for located in rows:
        if strict and refused.reasons:
            return
        try:
            problem = FORMATS[chosen](_renamed(located.row, columns))
            _refuse_duplicate(problem, golds)
        except UnusableRowError as reason:
            refused.add(str(reason), located.place)
            continue
        problem["problem_id"] = problem["problem_id"] or content_id(problem)
        if problem["problem_id"] in ids:
            refused.add("problem_id occurs twice", located.place)
            continue
        ids.add(problem["problem_id"])
        problem["source"] = problem["source"] or name
        yield problem


def _refuse_duplicate(problem: Problem, golds: dict[str, str | None]) -> None:
    key = " ".join(str(problem["question"] or problem["messages"]).casefold().split())
    if key in golds:
        raise UnusableRowError("duplicate question" if golds[key] == problem["answer"] else "conflicting duplicate")
    golds[key] = problem["answer"]


def _renamed(row: Row, columns: Mapping[str, str]) -> Row:
    return {**row, **{ours: row.get(theirs) for ours, theirs in columns.items()}}
