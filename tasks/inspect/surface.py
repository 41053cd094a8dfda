"""The response surface of a home: every scored rollout of its lake, counted by one query; and plans by it.

Counted are the policy's own answers that have a verdict, are there to be learned from, and were sampled above
temperature 0 from the problem's own prompt, with or without a hint; not those that continue a stored rollout or take
it up again. Rollouts that several scores judge count once, as solved if at least half of them say so; so do those of
which an artifact holds a copy, as a bisection makes it. Rollouts of an unknown policy, such as imported ones, are of a
policy named by their artifact. The share of a hint is the length of its text over that of the worked solution, in
twentieths; without a solution that which the table of hints says.

A plan has the problems, hints and samples that make the most groups with signal.
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from gradus.data.arrays import Column, Floats, Ints, floats, ints, one_array, pc, positions, take_or_null
from gradus.data.curation.plan import plan_rows, wave_rows
from gradus.data.curation.surface.known import COUNTED, GROUP, MANY, PREDICTED, Known, Sampler
from gradus.data.curation.surface.spending import spend
from gradus.data.curation.surface.tracked import kept
from gradus.data.curation.tracked import changed_rows
from gradus.data.errors import BadInputError, OnDamage, refuse
from gradus.data.files import replacing
from gradus.data.lake.schema import KEY_DIGITS, OWN, PLAN, PROBLEMS
from gradus.data.lake.store import Store
from gradus.data.sources.tabular import read_user_table
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.sql_views import ask
from gradus.tasks.preflight.checks import file_of, in_lake

_PROFILE = "sample some: `gradus profile --problems FILE --policy FOLDER`"


def _share(text: str) -> str:
    """Return the share of a hint as SQL over `lengths` and `fractions`; null if it is unknown."""
    part = f"case when chars > 0 then least(1.0, length({text}) / chars) else fraction end"
    return f"case when {part} < 0.05 then 0.05 else round(20 * {part}) / 20 end"


_SHARES = """
lengths as (select problem_id, max(length(solution)) as chars, max(domain) as domain from problems group by all),
fractions as (select problem_id, text, max(fraction) as fraction from hints group by all),
"""
_COUNTED = f"""
with {_SHARES}
copies as (
    select rollout_id, rollout_id[{KEY_DIGITS + 2}:] as original, policy from rollouts
    where regexp_matches(rollout_id, '^[0-9a-f]{{{KEY_DIGITS}}}:[0-9a-f]{{{KEY_DIGITS}}}:')
),
copied as (
    select copies.rollout_id, original from copies
    join rollouts on rollouts.rollout_id = original and rollouts.policy = copies.policy
),
verdicts as (
    select coalesce(original, rollout_id) as rollout_id, avg(correct::int) >= 0.5 as solved
    from scores left join copied using (rollout_id) where correct is not null group by 1
)
select problem_id, domain, coalesce(policy, 'rollouts/' || artifact) as policy, temperature,
    case when coalesce(hint_level, 0) = 0 then 0.0 else {_share("hint_text")} end as share,
    count(*) as n, sum(solved::int)::bigint as solved, avg(len(completion_tokens)) as tokens
from rollouts join verdicts using (rollout_id) left join lengths using (problem_id)
    left join fractions on fractions.problem_id = rollouts.problem_id and fractions.text = hint_text
where coalesce(origin, '{OWN}') = '{OWN}' and use is null and messages is null and parent is null and recall is null
    and coalesce(temperature, 1.0) > 0
group by all having share is not null
"""  # noqa: S608 - of constants alone
_HINTS = f"""
with {_SHARES}
shown as (select problem_id, level, text from hints where not coalesce(leaks_answer, false))
select problem_id, level, text, {_share("text")} as share
from shown left join lengths using (problem_id) left join fractions using (problem_id, text)
qualify row_number() over (partition by problem_id, text order by level) = 1 and share is not null
order by problem_id, level, text
"""  # noqa: S608


def counted(home: Home, say: Callable[[str], None], on_damage: OnDamage = refuse) -> pa.Table:
    """Return the judged rollouts of a lake as rows of COUNTED; `say` gets a sentence for what is left out."""
    with ask(home, _COUNTED, None, say, on_damage) as found:
        return found.table().cast(COUNTED)


def hints_there(home: Home, say: Callable[[str], None], on_damage: OnDamage = refuse) -> pa.Table:
    """Return the hints of a lake that may be shown, each text of a problem once: problem_id, level, text, share."""
    with ask(home, _HINTS, None, say, on_damage) as found:
        return found.table()


SHOWN = (0.25, 0.5, 0.75)
"""Shares of hints in the picture, if any hint was ever shown."""
GROUPS = 12
"""Groups of problems of like difficulty."""
CLIFF = 0.5
"""A problem of a smaller pass@64 is out of reach."""


class Ability(TypedDict):
    """A policy at a temperature, and how much it solves."""

    policy: str
    temperature: float | None
    n: int
    solved: int
    ability: float


class Ahead(Ability):
    """Another policy, and by how many logits its ability exceeds that of the first, with the error of that."""

    ahead: float
    error: float


class Alike(TypedDict):
    """Means over problems of like difficulty; rates of hints by their share."""

    problems: int
    low: float
    high: float
    rate: float
    pass_at_64: float
    hinted: dict[str, float]
    against: float | None


class Picture(TypedDict):
    """The surface as it is shown; `unreached` counts problems out of reach by the share of the hint, 0 for none."""

    policy: Ability
    against: Ahead | None
    policies: int
    rollouts: int
    problems: int
    gain: float
    groups: list[Alike]
    unreached: dict[str, int]


def picture(known: Known, sampler: int, against: int | None) -> Picture:
    """Return what a sampler solves, of groups of problems from easy to hard, and another one beside it."""
    shares = SHOWN if len(known.shares) > 1 else ()
    bare = known.chances(sampler, 0.0)
    rates = {f"{share:g}": known.chances(sampler, share) for share in shares}
    other = None if against is None else known.chances(against, 0.0).rate
    difficulty, rate, reached = known.surface.difficulty, bare.rate, 1 - bare.none_right(MANY)
    order = np.argsort(difficulty, kind="stable")
    groups: list[Alike] = [
        {
            "problems": len(at),
            "low": float(difficulty[at[0]]),
            "high": float(difficulty[at[-1]]),
            "rate": float(rate[at].mean()),
            "pass_at_64": float(reached[at].mean()),
            "hinted": {share: float(each.rate[at].mean()) for share, each in rates.items()},
            "against": None if other is None else float(other[at].mean()),
        }
        for at in np.array_split(order, GROUPS)
        if len(at)
    ]
    return {
        "policy": _ability(known, sampler),
        "against": None if against is None else _ahead(known, against, sampler),
        "policies": len(known.samplers),
        "rollouts": int(known.counts.n.sum()),
        "problems": len(known.problem_ids),
        "gain": known.surface.gain,
        "groups": groups,
        "unreached": {
            share: int(np.sum(1 - each.none_right(MANY) < CLIFF)) for share, each in {"0": bare, **rates}.items()
        },
    }


def _ability(known: Known, sampler: int) -> Ability:
    of = known.samplers[sampler]
    return {
        "policy": of.policy,
        "temperature": of.temperature,
        "n": of.n,
        "solved": of.solved,
        "ability": float(known.surface.ability[sampler]),
    }


def _ahead(known: Known, sampler: int, of: int) -> Ahead:
    ahead, error = known.surface.ahead(sampler, of)
    return {**_ability(known, sampler), "ahead": ahead, "error": error}


def write_surface(known: Known, path: Path) -> int:
    """Write PREDICTED of every sampler to a .parquet or .csv file; return the number of rows."""
    num = 0
    with replacing(path) as temporary:
        made = pq.ParquetWriter if path.suffix == ".parquet" else csv.CSVWriter
        with made(temporary, PREDICTED) as writer:
            for sampler in range(len(known.samplers)):
                rows = known.predicted(sampler)
                writer.write_table(rows)
                num += rows.num_rows
    return num


def write_tracker(known: Known, sampler: int, path: Path) -> int:
    """Write what the tracker `surface` begins with to a .parquet file; return the number of problems.

    Predictions are for a sampler, policy 0; the others are -1, -2 ..., those with most rollouts first.
    """
    others = sorted(set(range(len(known.samplers))) - {sampler}, key=lambda at: -known.samplers[at].n)
    numbers = np.zeros(len(known.samplers), dtype=np.int64)
    numbers[others] = -1 - np.arange(len(others))
    rows = kept(known, sampler, numbers)
    table = changed_rows(rows, ("problem_id",), [name for name in rows if name != "problem_id"])
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return table.num_rows


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
    return read_user_table(file_of(text, PROBLEMS.name), PROBLEMS, {})


def planned(
    known: Known, problems: pa.Table, hints: pa.Table, sampler: int, tokens: float, sizes: Sequence[int]
) -> tuple[pa.Table, Spent]:
    """Return the groups that a sampler should have, and what they are expected to cost and to make.

    `hints` has problem_id, level, text and share. The groups cost `tokens` at most, on average, and each has one of
    `sizes` as its number of samples. Raise BadInputError if no rollout says how many tokens it has, or if the tokens
    are not enough for one group.
    """
    ids = problems.column("problem_id")
    at = positions(ids, known.problem_ids)
    bare = known.expected_tokens(at, np.zeros(len(at)))
    if np.isnan(bare).any():
        raise BadInputError("no scored rollout without a hint has token ids, so that costs are unknown", hint=_PROFILE)
    hint, share = _helps(ids, hints)
    value = _signal(known, sampler, at, share, sizes)
    of_one = known.expected_tokens(np.broadcast_to(at[:, None], share.shape), share)
    cost = of_one[:, :, None] * np.array(sizes, np.float64)
    option = spend(value.reshape(len(at), -1), cost.reshape(len(at), -1), tokens)
    taken = np.flatnonzero(option >= 0)
    if not len(taken):
        raise BadInputError(
            f"{tokens:,.0f} tokens are not enough for one group, which takes {np.nanmin(cost):,.0f}",
            hint="give more --tokens, or smaller --samples",
        )
    help_, size = np.divmod(option[taken], len(sizes))
    chosen = pa.table(
        {
            "problem_id": ids.take(pa.array(taken)),
            "hint": pa.array(hint[taken, help_], mask=hint[taken, help_] < 0),
            "share": share[taken, help_],
            "n": np.array(sizes)[size],
            "signal": value[taken, help_, size],
            "tokens": cost[taken, help_, size],
        }
    )
    uniform = _signal(known, sampler, at, np.zeros((len(at), 1)), (GROUP,)).sum() / (GROUP * bare).sum()
    return chosen, {
        "policy": known.samplers[sampler].policy,
        "problems": len(at),
        **_sums(chosen),
        "uniform": 1 / uniform if uniform > 0 else None,
        "parts": _parts(chosen),
    }


def _helps(ids: Column, hints: pa.Table) -> tuple[Ints, Floats]:
    """Return hint row and share by problem and help (P, 1 + H): -1 and 0 for none, NaN where there is no such."""
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


def rows_planned(chosen: pa.Table, hints: pa.Table, of: Sampler, max_tokens: int, seed: int) -> pa.Table:
    """Return the rows of a plan that samples the groups that `planned` chose."""
    shown = pc.if_else(chosen.column("hint").is_valid(), pa.scalar("with a hint"), pa.scalar("without a hint"))
    signal = pa.array([f"surface: {each:.2f} of its groups have signal " for each in floats(chosen.column("signal"))])
    plan = plan_rows(
        chosen.column("problem_id"),
        reasons=pc.binary_join_element_wise(signal, shown, ""),
        round_index=0,
        n=GROUP,
        temperature=1.0 if of.temperature is None else of.temperature,
        max_tokens=max_tokens,
        seed=seed,
    )
    hint = ints(chosen.column("hint"), null=-1)
    columns = {
        "n": one_array(chosen.column("n")),
        "hint_level": take_or_null(hints.column("level"), hint),
        "hint_text": take_or_null(hints.column("text"), hint),
    }
    named = wave_rows(plan, columns, plan.slice(0, 0), round_index=0, wave=0, call=0, seed=seed)
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
    share, n = floats(chosen.column("share")), ints(chosen.column("n"))
    found: list[Part] = []
    for hinted, size in product((False, True), np.unique(n)):
        those = ((share > 0) == hinted) & (n == size)
        if those.any():
            sums = _sums(chosen.filter(pa.array(those)))
            found.append({"share": float(share[those].mean()), "samples": int(size), **sums})
    return found
