"""Plan rows: which problem is sampled how often, under which hint and seed, and why.

A row of wave 0 is named `{problem_id}@r{round}h0`, one of a later wave `{problem_id}@r{round}w{wave}c{call}`, with
`.{number}` behind it if the wave plans the problem several times. Its seed derives from the run seed and the same parts
alone, so that neither order nor selection moves it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Column, floats, one_array, pc, positions, take_or_null
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PLAN, cast_to_schema
from gradus.data.seeds import derive_seed


def plan_rows(
    problem_ids: Column, *, reasons: Column, round_index: int, n: int, temperature: float, max_tokens: int, seed: int
) -> pa.Table:
    """Return the plan of wave 0: one row per problem id (N,), without hints."""
    ids = one_array(problem_ids).to_pylist()
    keys = [(name, round_index, 0) for name in ids]  # 0 is the hint level
    return _table(ids, [f"{name}@r{round_index}h0" for name in ids], keys, seed, n, temperature, max_tokens, reasons)


def wave_rows(
    problem_ids: Column,
    columns: Mapping[str, pa.Array],
    *,
    reason: str,
    round_index: int,
    wave: int,
    call: int,
    n: int,
    temperature: float,
    max_tokens: int,
    seed: int,
) -> pa.Table:
    """Return the plan of a later wave: one row per problem id (P,), with what the wave sets of its columns (P,).

    A row is a group of its own unless the column `group` names another.
    """
    ids, seen = one_array(problem_ids).to_pylist(), dict[str, int]()
    keys: list[tuple[object, ...]] = []
    for name in ids:
        keys.append((name, round_index, "wave", wave, call, seen.setdefault(name, 0)))
        seen[name] += 1
    names = [
        f"{name}@r{round_index}w{wave}c{call}" + (f".{number}" if number else "") for name, _, _, _, _, number in keys
    ]
    table = _table(ids, names, keys, seed, n, temperature, max_tokens, pa.repeat(pa.scalar(reason), len(ids)))
    own = {
        "plan_id": pa.array(names, pa.string()),
        "wave": pa.repeat(pa.scalar(wave, pa.int32()), len(ids)),
        "call": pa.repeat(pa.scalar(call, pa.int32()), len(ids)),
    }
    given = {"group_id" if name == "group" else name: values for name, values in columns.items()}
    for name, values in {**own, **given}.items():
        place = table.schema.get_field_index(name)
        if place < 0:
            table = table.append_column(name, values)
        else:
            table = table.set_column(
                place, name, pc.coalesce(values.cast(table.schema.types[place]), table.column(name))
            )
    return cast_to_schema(table, PLAN)


def _table(
    ids: Sequence[str],
    groups: Sequence[str],
    keys: Sequence[tuple[object, ...]],
    seed: int,
    n: int,
    temperature: float,
    max_tokens: int,
    reasons: Column,
) -> pa.Table:
    num = len(ids)
    table = pa.table(
        {
            "problem_id": pa.array(ids, pa.string()),
            "group_id": pa.array(groups, pa.string()),
            "n": pa.repeat(pa.scalar(n, pa.int32()), num),
            "hint_level": pa.array(np.zeros(num, np.int64)),
            "hint_text": pa.nulls(num, pa.string()),
            "temperature": pa.repeat(pa.scalar(temperature, pa.float64()), num),
            "max_tokens": pa.repeat(pa.scalar(max_tokens, pa.int32()), num),
            "seed": pa.array([derive_seed(seed, *key) for key in keys], pa.int64()),
            "reason": one_array(reasons),
        }
    )
    return cast_to_schema(table, PLAN)


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


def hints_of_level(hints: pa.Table, level: int, problem_ids: Column) -> tuple[pa.Array, Bools]:
    """Return the hint of one level per problem (N,), null if there is none, and whether one was withheld (N,).

    A hint that states the answer is never served. Where several strategies hint at a problem, the first in the table
    counts.
    """
    at_level = hints.filter(pc.equal(hints.column("level"), level))
    leaks = pc.fill_null(at_level.column("leaks_answer"), fill_value=False)
    safe, unsafe = at_level.filter(pc.invert(leaks)), at_level.filter(leaks)
    texts = take_or_null(safe.column("text"), positions(problem_ids, safe.column("problem_id")))
    withheld = positions(problem_ids, unsafe.column("problem_id")) >= 0
    return texts, withheld & np.asarray(texts.is_null().to_numpy(zero_copy_only=False))
