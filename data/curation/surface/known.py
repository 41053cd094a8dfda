"""Counts of judged rollouts as a table, the model of them, and what it predicts of every problem.

    known = learn(counted, problems)          # rows of COUNTED; further problems
    known.predicted(known.sampler("5084"))    # a table: every problem with every share of a hint

A sampler is a policy at a temperature: at another one it has another ability.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import starmap

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, Ints, codes, floats, ints, nulls, take_or_null
from gradus.data.curation.surface.model import Counts, Layout, Predicted, Surface, fit
from gradus.data.errors import BadInputError
from gradus.data.nearest import unique

COUNTED = pa.schema(
    [
        pa.field("problem_id", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("policy", pa.string()),
        pa.field("temperature", pa.float64()),
        pa.field("share", pa.float64()),
        pa.field("n", pa.int64()),
        pa.field("solved", pa.int64()),
        pa.field("tokens", pa.float64()),
    ]
)
"""Judged rollouts of a problem, of a domain, by a policy at a temperature with a share of the hint, 0 to 1; their mean
tokens."""
PREDICTED = pa.schema([*COUNTED, *(pa.field(name, pa.float64()) for name in ("rate", "low", "high", "signal"))])
"""The same with the chance to solve, its interval, and the chance that a group of GROUP has right and wrong answers."""
_KEY = ("problem_id", "policy", "temperature", "share")
DOMAINS = 200
"""Domains that have a difficulty of their own: the square of their number is held in memory."""
GROUP = 8
MANY = 64
"""Samples of which none is right where a problem is out of reach."""


@dataclass(frozen=True)
class Sampler:
    """A policy at a temperature, with its judged rollouts."""

    policy: str
    temperature: float | None
    n: int
    solved: int


@dataclass(frozen=True)
class Known:
    """Counts and their model."""

    problem_ids: pa.Array
    domains: pa.Array
    """Domain of each problem (P,), null if unknown."""
    samplers: tuple[Sampler, ...]
    counts: Counts
    tokens: Floats
    """Mean completion tokens of each row of the counts (R,); NaN where they are unknown."""
    surface: Surface

    @cached_property
    def shares(self) -> Floats:
        """The shares of hints that were shown, and 0, in order."""
        return np.unique(np.append(self.counts.share, 0.0))

    def sampler(self, policy: str = "") -> int:
        """Return the number of the sampler with most rollouts: of all, or of a policy by the beginning of its name.

        Raise UsageError if no rollout is of that policy, or if several policies are named so.
        """
        named = {each.policy for each in self.samplers}
        if policy:
            digest = policy.removeprefix("checkpoints/")
            otherwise = f"scored rollouts are of {', '.join(sorted(named)[:3])}{' ...' if len(named) > 3 else ''}"
            named = {unique(digest, named, "scored rollout of the policy", otherwise)}
        those = [at for at, each in enumerate(self.samplers) if each.policy in named]
        return max(those, key=lambda at: self.samplers[at].n)

    def chances(self, sampler: int, share: float) -> Predicted:
        """Return the chance that a sampler solves each problem with a share of its hint (P,)."""
        num = len(self.problem_ids)
        return self.surface.predict(np.arange(num), np.full(num, sampler), np.full(num, share))

    def predicted(self, sampler: int) -> pa.Table:
        """Return the rows of PREDICTED of a sampler: every problem with every share, in the order of both."""
        num, shares, of = len(self.problem_ids), self.shares, self.samplers[sampler]
        problem, share = np.repeat(np.arange(num), len(shares)), np.tile(shares, num)
        own = self.counts.policy == sampler
        at = self.counts.problem[own] * len(shares) + np.searchsorted(shares, self.counts.share[own])
        n, solved = (np.bincount(at, each[own], len(problem)) for each in (self.counts.n, self.counts.solved))
        tokens = np.full(len(problem), np.nan)
        tokens[at] = self.tokens[own]
        found = self.surface.predict(problem, np.full(len(problem), sampler), share)
        low, high = found.interval()
        columns = {
            "problem_id": self.problem_ids.take(pa.array(problem)),
            "domain": self.domains.take(pa.array(problem)),
            "policy": pa.repeat(pa.scalar(of.policy), len(problem)),
            "temperature": pa.repeat(pa.scalar(of.temperature, pa.float64()), len(problem)),
            "share": share,
            "n": n.astype(np.int64),
            "solved": solved.astype(np.int64),
            "tokens": pa.array(tokens, from_pandas=True),
            "rate": found.rate,
            "low": low,
            "high": high,
            "signal": found.signal(GROUP),
        }
        return pa.table(columns, schema=PREDICTED)

    def expected_tokens(self, problem: Ints, share: Floats) -> Floats:
        """Return completion tokens of each problem with a share of its hint, (Q,): its mean less what the hint saves.

        A hint saves the same part of the completion with every problem, in proportion to its share (least squares). A
        problem without a bare rollout has the mean of all; NaN if no rollout without a hint has token ids.
        """
        known, bare = ~np.isnan(self.tokens), self.counts.share == 0
        mean = self._bare_tokens(known & bare)
        helped = known & ~bare
        at, n, whole = self.counts.problem[helped], self.counts.n[helped], self.counts.share[helped]
        slope = mean[at] * whole
        saved = np.sum(n * slope * (mean[at] - self.tokens[helped])) / max(np.sum(n * slope**2), 1e-12)
        return np.maximum(mean[problem] * (1 - min(max(saved, 0.0), 1.0) * share), 1.0)

    def _bare_tokens(self, rows: Bools) -> Floats:
        problem, weight = self.counts.problem[rows], self.counts.n[rows].astype(np.float64)
        sums, n = (np.bincount(problem, each, len(self.problem_ids)) for each in (weight * self.tokens[rows], weight))
        of_all = sums.sum() / n.sum() if n.sum() else np.nan
        return np.divide(sums, n, out=np.full(len(n), of_all), where=n > 0)


def learn(counted: pa.Table, problems: pa.Table | None = None) -> Known:
    """Return what rows of COUNTED say, (R,) of them in any order, one for each key.

    `problems` has problem_id and domain of further problems. Raise BadInputError if there is no row.
    """
    if not counted.num_rows:
        raise BadInputError(
            "the lake has no scored rollout with a verdict",
            hint="sample and score some: `gradus profile --problems FILE --policy FOLDER`",
        )
    rows = counted.sort_by([(name, "ascending") for name in _KEY]).combine_chunks()
    every = rows.select(["problem_id", "domain"])
    if problems is not None:
        every = pa.concat_tables([every, problems.select(every.column_names)])
    number, ids = codes(every.column("problem_id"))
    domains = take_or_null(every.column("domain"), np.unique(number, return_index=True)[1])
    samplers, sampler = _samplers(rows)
    n, solved = ints(rows.column("n")), ints(rows.column("solved"))
    counts = Counts(number[: rows.num_rows], sampler, floats(rows.column("share")), n, solved)
    surface = fit(counts, Layout(len(samplers), _kinds(domains)))
    return Known(ids, domains, samplers, counts, floats(rows.column("tokens")), surface)


def _kinds(domains: pa.Array) -> Ints:
    """Return the number of each problem's domain (P,); -1 for none, and for one beyond the DOMAINS largest."""
    number, names = codes(domains)
    size = np.bincount(number, minlength=len(names))
    usual = np.argsort(-size, kind="stable")[:DOMAINS]
    usual = usual[(size[usual] > 1) & ~nulls(names)[usual]]
    place = np.full(len(names), -1)
    place[usual] = np.arange(len(usual))
    return place[number]


def _samplers(rows: pa.Table) -> tuple[tuple[Sampler, ...], Ints]:
    """Return the policies at their temperatures, and the number of that of each row (R,)."""
    policy, policies = codes(rows.column("policy"))
    heat, heats = codes(rows.column("temperature"))
    pairs, number = np.unique(policy * len(heats) + heat, return_inverse=True)
    columns = (
        policies.take(pa.array(pairs // len(heats))).to_pylist(),
        heats.take(pa.array(pairs % len(heats))).to_pylist(),
        *(np.bincount(number, ints(rows.column(name))).astype(np.int64).tolist() for name in ("n", "solved")),
    )
    return tuple(starmap(Sampler, zip(*columns, strict=True))), number
