"""Plan rows: which problem is sampled how often, under which hint and seed, and why.

A row is named `{problem_id}@r{round}h{hint level}`, with `.{number}` behind it if the round planned the problem with a
hint of that level before. Its seed derives from the run seed and the same parts alone, so that neither order nor
selection moves it, nor a wave that plans other problems.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Column, bools, floats, ints, nulls, one_array, pc, positions, take_or_null
from gradus.data.curation.continued import joined
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PLAN, cast_to_schema
from gradus.data.seeds import derive_seed

_PROBLEM = "problem"
"""The value of `trained_prompt` for the problem's own prompt."""


def plan_rows(
    problem_ids: Column,
    *,
    reasons: Column,
    round_index: int,
    n: int,
    temperature: float,
    max_tokens: int,
    seed: int,
    hints: pa.Table | None = None,
) -> pa.Table:
    """Return the plan of wave 0: one row per problem id (N,), with the `hints` of each (see `hinted`) or none."""
    ids = one_array(problem_ids)
    table = pa.table(
        {
            "problem_id": ids,
            "n": pa.repeat(pa.scalar(n, pa.int32()), len(ids)),
            "hint_level": pa.array(np.zeros(len(ids), np.int32)),
            "temperature": pa.repeat(pa.scalar(temperature, pa.float64()), len(ids)),
            "max_tokens": pa.repeat(pa.scalar(max_tokens, pa.int32()), len(ids)),
            "reason": one_array(reasons),
        }
    )
    for name, column in () if hints is None else zip(hints.column_names, hints.columns, strict=True):
        place, values = table.schema.get_field_index(name), one_array(column)
        table = table.append_column(name, values) if place < 0 else table.set_column(place, name, values)
    names, seeds = _named(table, Counter(), round_index, seed)
    return cast_to_schema(table.append_column("group_id", names).append_column("seed", seeds), PLAN)


def wave_rows(
    plan: pa.Table,
    columns: Mapping[str, pa.Array],
    before: pa.Table,
    *,
    round_index: int,
    wave: int,
    call: int,
    seed: int,
) -> pa.Table:
    """Return the plan of a later wave: rows of `plan_rows`, with other problems, and what the wave sets of them (P,).

    A row is a group of its own unless the column `group` names another, or `together` has the number of an earlier row.
    `before` has the plans of the round so far.
    """
    table, of_groups = plan, ("group", "together")
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        if name not in of_groups and place < 0:
            table = table.append_column(name, values)
        elif name not in of_groups:
            filled = pc.coalesce(values.cast(table.schema.types[place]), table.column(name))
            table = table.set_column(place, name, filled)
    planned = Counter(
        zip(before.column("problem_id").to_pylist(), ints(before.column("hint_level")).tolist(), strict=True)
    )
    names, seeds = _named(table, planned, round_index, seed)
    groups = joined(names, columns["together"]) if "together" in columns else names
    groups = pc.coalesce(columns["group"], groups) if "group" in columns else groups
    for name, values in (("group_id", groups), ("seed", seeds)):
        table = table.set_column(table.schema.get_field_index(name), name, values)
    own = {"plan_id": names, "wave": _same(wave, len(names)), "call": _same(call, len(names))}
    for name, values in own.items():
        table = table.append_column(name, values)
    return cast_to_schema(table, PLAN)


def _named(
    table: pa.Table, planned: Counter[tuple[str, int]], round_index: int, seed: int
) -> tuple[pa.Array, pa.Array]:
    """Return name and seed of each row; `planned` counts the rows before by problem and hint level."""
    names: list[str] = []
    seeds: list[int] = []
    for problem, level in zip(
        table.column("problem_id").to_pylist(), ints(table.column("hint_level")).tolist(), strict=True
    ):
        number = planned[problem, level]
        planned[problem, level] += 1
        names.append(f"{problem}@r{round_index}h{level}" + (f".{number}" if number else ""))
        seeds.append(derive_seed(seed, problem, round_index, level, *([number] if number else [])))
    return pa.array(names, pa.string()), pa.array(seeds, pa.int64())


def _same(value: int, num: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int32()), num)


def given_rows(given: pa.Table, index: int, draw: int) -> pa.Table:
    """Return the rows of a given plan that a round (from 1 on) takes: the next `draw`, 0 for all, in a circle."""
    size = min(draw or given.num_rows, given.num_rows)
    return given.take(pa.array((np.arange(size) + (max(index, 1) - 1) * size) % given.num_rows))


def with_hints(given: pa.Table, hints: pa.Table) -> dict[str, pa.Array]:
    """Return hint_text and, if the hints have one, the sentence above it, of rows that name the level of a hint alone.

    Other rows keep theirs. Raise BadInputError for a hint that a problem does not have, or that states its answer.
    """
    ids, number = given.column("problem_id"), ints(PLAN.column(given, "hint_level"))
    text = one_array(PLAN.column(given, "hint_text"))
    asked = nulls(text) & (number > 0)
    for level in np.unique(number[asked]).tolist():
        found, withheld = hints_of_level(hints, level, ids)
        lacking = np.flatnonzero(asked & (number == level) & nulls(found))
        if len(lacking):
            why = "states the answer" if withheld[lacking[0]] else "is not there"
            raise BadInputError(
                f"the given plan shows hint level {level} of problem {ids[int(lacking[0])]}, which {why}",
                hint="take the row out, or give another level or a hint_text",
            )
        text = pc.if_else(pa.array(asked & (number == level)), found, text)
    if "shown" not in hints.column_names:
        return {"hint_text": text}
    known = hints.select(["problem_id", "level", "shown"])
    shown = shown_above([known], ids, one_array(PLAN.column(given, "hint_level")), text)
    return {"hint_text": text, "shown": pc.coalesce(one_array(PLAN.column(given, "shown")), shown)}


def refuse_odd(plan: pa.Table) -> None:
    """Raise BadInputError naming the first row of a plan that nothing can be sampled of."""
    n, max_tokens, temperature = (floats(plan.column(name)) for name in ("n", "max_tokens", "temperature"))
    odd = np.flatnonzero(~((n >= 1) & (max_tokens >= 1) & (temperature >= 0) & (temperature < np.inf)))
    if len(odd):
        row = plan.slice(int(odd[0]), 1).to_pylist()[0]
        raise BadInputError(
            f"the plan asks for n = {row['n']}, max_tokens = {row['max_tokens']}, temperature = {row['temperature']} "
            f"of problem {row['problem_id']}",
            hint="n and max_tokens are at least 1, temperature at least 0",
        )
    trained = PLAN.column(plan, "trained_prompt")
    wrong = np.flatnonzero(~nulls(trained) & ~bools(pc.equal(trained, _PROBLEM)))
    if len(wrong):
        row = int(wrong[0])
        raise BadInputError(
            f"the plan has trained_prompt = {trained[row].as_py()!r} at problem {plan.column('problem_id')[row]}",
            hint=f"it is {_PROBLEM}, the problem's own prompt, or left out",
        )


def hints_of_level(hints: pa.Table, level: int, problem_ids: Column, revealing: bool = False) -> tuple[pa.Array, Bools]:
    """Return the hint of one level per problem (N,), null if there is none, and whether one was withheld (N,).

    A hint that states the answer is served only if `revealing` is true. Where several strategies hint at a problem, the
    first in the table counts.
    """
    at_level = hints.filter(pc.equal(hints.column("level"), level))
    leaks = pa.array(bools(at_level.column("leaks_answer")) & (not revealing))
    safe, unsafe = at_level.filter(pc.invert(leaks)), at_level.filter(leaks)
    texts = take_or_null(safe.column("text"), positions(problem_ids, safe.column("problem_id")))
    withheld = positions(problem_ids, unsafe.column("problem_id")) >= 0
    return texts, withheld & np.asarray(texts.is_null().to_numpy(zero_copy_only=False))


def hint_texts(hints: pa.Table, problem_ids: Column) -> pa.Array:
    """Return the hints of problems (N,), lists from level 1 on, null at a level without one; null without any.

    Those that state the answer are among them. Where several strategies hint at a problem, the first in the table
    counts.
    """
    highest = int(ints(hints.column("level")).max(initial=0))
    levels = [hints_of_level(hints, level, problem_ids, revealing=True)[0] for level in range(1, highest + 1)]
    found = [list(texts) for texts in zip(*(level.to_pylist() for level in levels), strict=True)]
    there = [texts if any(text is not None for text in texts) else None for texts in found]
    return pa.array(there or [None] * len(problem_ids), pa.list_(pa.string()))


def hinted(hints: pa.Table, level: int, problem_ids: Column, chosen: Bools) -> tuple[pa.Table, dict[str, int]]:
    """Return hint_level, hint_text and shown of problems (N,), and the number without the hint by reason.

    Only those that are `chosen` (N,) are shown the hint of the level; hints that state the answer are not shown.
    """
    texts, withheld = hints_of_level(hints, level, problem_ids)
    missing = nulls(texts)
    there = pa.array(chosen & ~missing)
    levels = pc.if_else(there, pa.scalar(level, pa.int32()), pa.scalar(0, pa.int32()))
    texts = pc.if_else(there, texts, pa.scalar(None, pa.string()))
    columns = {"hint_level": levels, "hint_text": texts}
    if "shown" in hints.column_names:
        known = hints.select(["problem_id", "level", "shown"])
        columns["shown"] = shown_above([known], problem_ids, levels, texts)
    reasons = {
        f"no hint of level {level}": int((chosen & missing & ~withheld).sum()),
        "the hint states the answer": int((chosen & withheld).sum()),
    }
    return pa.table(columns), {reason: num for reason, num in reasons.items() if num}


def shown_above(known: Sequence[pa.Table], problem_ids: Column, levels: Column, texts: Column) -> pa.Array:
    """Return the sentence above each hint (N,), null for none, from tables of problem, level and sentence."""
    keys = _of_level(problem_ids, levels)
    found = [take_or_null(one_array(each[2]), positions(keys, _of_level(each[0], each[1]))) for each in known]
    return pc.if_else(pa.array(~nulls(texts)), pc.coalesce(*found), pa.scalar(None, pa.string()))


def _of_level(problem_ids: Column, levels: Column) -> pa.Array:
    return one_array(pc.binary_join_element_wise(problem_ids, levels.cast(pa.string()), "\0"))
