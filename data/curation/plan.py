"""Plan rows: which problem is sampled how often, under which hint and seed, and why.

A group is named `{problem_id}@r{round}h{hint level}`; its seed derives from the run seed, the problem, the round and
the hint level alone, so that neither order nor selection moves it.
"""

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Column, Ints, one_array, pc, positions, take_or_null
from gradus.data.lake.schema import PLAN, cast_to_schema
from gradus.data.seeds import derive_seed


def plan_rows(
    problem_ids: Column,
    *,
    reasons: Column,
    hint_levels: Ints,
    hint_texts: Column,
    rounds: Ints,
    n: int,
    temperature: float,
    max_tokens: int,
    seed: int,
) -> pa.Table:
    """A plan of one row per problem id, all columns (N,)."""
    ids = one_array(problem_ids)
    num = len(ids)
    groups = pc.binary_join_element_wise(ids, "@r", _text(rounds), "h", _text(hint_levels), "")
    keys = zip(ids.to_pylist(), rounds.tolist(), hint_levels.tolist(), strict=True)
    table = pa.table(
        {
            "problem_id": ids,
            "group_id": groups,
            "n": pa.repeat(pa.scalar(n, pa.int32()), num),
            "hint_level": pa.array(hint_levels),
            "hint_text": one_array(hint_texts),
            "temperature": pa.repeat(pa.scalar(temperature, pa.float64()), num),
            "max_tokens": pa.repeat(pa.scalar(max_tokens, pa.int32()), num),
            "seed": pa.array([derive_seed(seed, *key) for key in keys], pa.int64()),
            "reason": one_array(reasons),
        }
    )
    return cast_to_schema(table, PLAN)


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


def _text(numbers: Ints) -> pa.Array:
    return pa.array(numbers).cast(pa.string())
