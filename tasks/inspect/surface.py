"""The response surface of a home: every scored rollout of its lake, counted by one query.

Counted are the policy's own answers that have a verdict, are there to be learned from, and were sampled above
temperature 0 from the problem's own prompt, with or without a hint; not those that continue a stored rollout or take
it up again. Rollouts that several scores judge count once, as solved if at least half of them say so; so do those of
which an artifact holds a copy, as a bisection makes it. Rollouts of an unknown policy, such as imported ones, are of a
policy named by their artifact. The share of a hint is the length of its text over that of the worked solution, in
twentieths; without a solution that which the table of hints says.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from gradus.data.curation.surface.known import COUNTED, MANY, PREDICTED, Known
from gradus.data.curation.surface.tracked import kept
from gradus.data.curation.tracked import changed_rows
from gradus.data.errors import OnDamage, refuse
from gradus.data.files import replacing
from gradus.data.lake.schema import KEY_DIGITS, OWN
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.sql_views import ask


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
    hinted = {share: each.rate for share, each in rates.items()}
    order = np.argsort(difficulty, kind="stable")
    groups: list[Alike] = [
        {
            "problems": len(at),
            "low": float(difficulty[at[0]]),
            "high": float(difficulty[at[-1]]),
            "rate": float(rate[at].mean()),
            "pass_at_64": float(reached[at].mean()),
            "hinted": {share: float(each[at].mean()) for share, each in hinted.items()},
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

    Predictions are for a sampler, which is policy 0 of the entries; the others are -1, -2 ..., those with most rollouts
    first.
    """
    others = sorted(set(range(len(known.samplers))) - {sampler}, key=lambda at: -known.samplers[at].n)
    numbers = np.zeros(len(known.samplers), dtype=np.int64)
    numbers[others] = -1 - np.arange(len(others))
    rows = kept(known, sampler, numbers)
    table = changed_rows(rows, ("problem_id",), [name for name in rows if name != "problem_id"])
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return table.num_rows
