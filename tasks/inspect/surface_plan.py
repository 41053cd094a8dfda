"""A plan by the response surface: the problems, hints and samples that make the most groups with signal."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gradus.data.arrays import Column, Floats, Ints, floats, ints, one_array, pc, positions, take_or_null
from gradus.data.curation.plan import plan_rows, wave_rows
from gradus.data.curation.surface.known import GROUP, Known, Sampler
from gradus.data.curation.surface.spending import spend
from gradus.data.errors import BadInputError
from gradus.data.files import replacing
from gradus.data.lake.schema import PLAN, PROBLEMS
from gradus.data.lake.store import Store
from gradus.data.sources.tabular import read_user_table
from gradus.tasks.preflight.checks import file_of, in_lake

_PROFILE = "sample some: `gradus profile --problems FILE --policy FOLDER`"


class Sums(TypedDict):
    """Groups with their rollouts and completion tokens; how many are expected to have signal, tokens for each."""

    groups: int
    rollouts: int
    signal: float
    tokens: int
    tokens_per_signal: float | None


class Part(Sums):
    """Groups of one size, with a hint or without one; the mean share of the hint."""

    share: float
    samples: int


class Spent(Sums):
    """A plan for a policy; `uniform` are tokens for each group with signal, all problems bare, GROUP samples each."""

    policy: str
    problems: int
    uniform: float | None
    parts: list[Part]


def problems_named(store: Store, text: str) -> pa.Table:
    """Return the problems of an artifact or of a file with ids; UsageError or BadInputError if it names none."""
    ref = in_lake(store.root, text, PROBLEMS.name)
    if ref is not None:
        rows = store.read(ref)
        if not rows.num_rows:
            raise BadInputError(f"{ref} has no problem", hint="give another one")
        return rows
    rows, _ = read_user_table(file_of(text, PROBLEMS.name), PROBLEMS, {}, strict=True)
    return rows


def write_plan(plan: pa.Table, path: Path) -> None:
    """Write the rows of a plan to a .parquet or .jsonl file."""
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(plan, temporary, compression="zstd")
            return
        rows = ({name: value for name, value in row.items() if value is not None} for row in plan.to_pylist())
        temporary.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


@dataclass(frozen=True)
class Wanted:
    """A plan that is asked for."""

    tokens: float
    """Completion tokens that it may cost, on average."""
    sizes: tuple[int, ...]
    """Samples that a group may have."""
    max_tokens: int
    seed: int


def planned(known: Known, problems: pa.Table, hints: pa.Table, sampler: int, wanted: Wanted) -> tuple[pa.Table, Spent]:
    """Return rows of a plan for a sampler, and what they are expected to cost and to make.

    `hints` has problem_id, level, text and share. Raise BadInputError if no rollout says how many tokens it has, or if
    the tokens are not enough for one group.
    """
    ids = problems.column("problem_id")
    at = positions(ids, known.problem_ids)
    bare = known.expected_tokens(at, np.zeros(len(at)))
    if np.isnan(bare).any():
        raise BadInputError("no scored rollout without a hint has token ids, so that costs are unknown", hint=_PROFILE)
    hint, share = _helps(ids, hints)
    value = _signal(known, sampler, at, share, wanted.sizes)
    of_one = known.expected_tokens(np.broadcast_to(at[:, None], share.shape), share)
    cost = of_one[:, :, None] * np.array(wanted.sizes, np.float64)
    option = spend(value.reshape(len(at), -1), cost.reshape(len(at), -1), wanted.tokens)
    taken = np.flatnonzero(option >= 0)
    if not len(taken):
        raise BadInputError(
            f"{wanted.tokens:,.0f} tokens are not enough for one group, which takes {np.nanmin(cost):,.0f}",
            hint="give more --tokens, or smaller --samples",
        )
    help_, size = np.divmod(option[taken], len(wanted.sizes))
    chosen = pa.table(
        {
            "problem_id": ids.take(pa.array(taken)),
            "hint": pa.array(hint[taken, help_], mask=hint[taken, help_] < 0),
            "share": share[taken, help_],
            "n": np.array(wanted.sizes)[size],
            "signal": value[taken, help_, size],
            "tokens": cost[taken, help_, size],
        }
    )
    uniform = _signal(known, sampler, at, np.zeros((len(at), 1)), (GROUP,)).sum() / (GROUP * bare).sum()
    return _rows(chosen, hints, known.samplers[sampler], wanted), {
        "policy": known.samplers[sampler].policy,
        "problems": len(at),
        **_sums(chosen),
        "uniform": 1 / uniform if uniform > 0 else None,
        "parts": _parts(chosen),
    }


def _helps(ids: Column, hints: pa.Table) -> tuple[Ints, Floats]:
    """Return row of the hint and share shown by each help that a problem can have (P, 1 + H): -1 and 0 for none.

    The share is NaN where a problem has fewer hints than another one.
    """
    at = positions(hints.column("problem_id"), ids)
    rows = np.flatnonzero(at >= 0)[np.argsort(at[at >= 0], kind="stable")]
    problem = at[rows]
    place = 1 + np.arange(len(rows)) - np.searchsorted(problem, problem)
    hint = np.full((len(ids), 1 + int(place.max(initial=0))), -1)
    share = np.where(np.arange(hint.shape[1]) == 0, 0.0, np.full(hint.shape, np.nan))
    hint[problem, place] = rows
    share[problem, place] = floats(hints.column("share"))[rows]
    return hint, share


def _signal(known: Known, sampler: int, problem: Ints, share: Floats, sizes: Sequence[int]) -> Floats:
    """Return the chance of signal of each problem, help and size (P, H, S); NaN where there is no such help."""
    there = ~np.isnan(share)
    problems = np.broadcast_to(problem[:, None], share.shape)[there]
    found = known.surface.predict(problems, np.full(len(problems), sampler), share[there])
    value = np.full((*share.shape, len(sizes)), np.nan)
    value[there] = np.stack([found.signal(size) for size in sizes], axis=1)
    return value


def _rows(chosen: pa.Table, hints: pa.Table, of: Sampler, wanted: Wanted) -> pa.Table:
    shown = pc.if_else(chosen.column("hint").is_valid(), pa.scalar("with a hint"), pa.scalar("without a hint"))
    signal = pa.array([f"surface: {each:.2f} of its groups have signal " for each in floats(chosen.column("signal"))])
    plan = plan_rows(
        chosen.column("problem_id"),
        reasons=pc.binary_join_element_wise(signal, shown, ""),
        round_index=0,
        n=GROUP,
        temperature=1.0 if of.temperature is None else of.temperature,
        max_tokens=wanted.max_tokens,
        seed=wanted.seed,
    )
    hint = ints(chosen.column("hint"), null=-1)
    columns = {
        "n": one_array(chosen.column("n")),
        "hint_level": take_or_null(hints.column("level"), hint),
        "hint_text": take_or_null(hints.column("text"), hint),
    }
    named = wave_rows(plan, columns, plan.slice(0, 0), round_index=0, wave=0, call=0, seed=wanted.seed)
    return named.select(PLAN.arrow.names)


def _sums(chosen: pa.Table) -> Sums:
    signal, tokens = (float(floats(chosen.column(name)).sum()) for name in ("signal", "tokens"))
    return {
        "groups": chosen.num_rows,
        "rollouts": int(ints(chosen.column("n")).sum()),
        "signal": signal,
        "tokens": round(tokens),
        "tokens_per_signal": tokens / signal if signal else None,
    }


def _parts(chosen: pa.Table) -> list[Part]:
    """Return the sums of the groups of each size, those without a hint first."""
    share, n = floats(chosen.column("share")), ints(chosen.column("n"))
    found: list[Part] = []
    for hinted, size in product((False, True), np.unique(n)):
        those = ((share > 0) == hinted) & (n == size)
        if those.any():
            sums = _sums(chosen.filter(pa.array(those)))
            found.append({"share": float(share[those].mean()), "samples": int(size), **sums})
    return found
