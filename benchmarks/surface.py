"""Predict pass rates by the response surface, beside those of fresh samples; and groups with signal for the tokens.

    python benchmarks/surface.py                                  # simulated policies, 20 times
    python benchmarks/surface.py --home FOLDER --policy DIGEST    # the scored rollouts of a home, 200 splits

Simulated: POLICIES policies sampled each of 1,000 problems 4 times; the chance of a new policy is predicted from them
and from few samples of its own. Error: mean squared difference from the true chance (the Brier score less what no
prediction can avoid). `2PL`: policies differ more on some problems than on others, which the model does not know.
Of a home: all rollouts but those of the policy are known. Of its problems with 8 bare rollouts or more, 4 rollouts
each are left for the test, and up to 4 are the fresh samples; the score is Brier's over the rollouts of the test. `Of
others none`: no other policy sampled these problems, so that only their domain is known.
"""

import argparse
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy import special

from gradus.data.arrays import Floats, Ints, ints
from gradus.data.curation.surface.known import learn
from gradus.data.curation.surface.model import Counts, Layout, fit
from gradus.data.curation.surface.spending import spend
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.surface import counted

PROBLEMS, POLICIES, FRESH, FEW = 1000, 5, 4, 64
NO_DOMAINS = np.full(PROBLEMS, -1)


def simulated(rng: np.random.Generator, *, mixed: bool) -> tuple[Counts, Floats]:
    """Return counts of POLICIES policies, 4 samples a problem, and the true chances of a further one."""
    ability = rng.normal(-0.5, 1.0, POLICIES + 1)
    difficulty = rng.normal(0.0, 2.5, PROBLEMS)
    slope = rng.lognormal(0.0, 0.4, PROBLEMS) if mixed else np.ones(PROBLEMS)
    chance = special.expit(slope * (ability[:, None] - difficulty))
    problem, policy = np.tile(np.arange(PROBLEMS), POLICIES), np.repeat(np.arange(POLICIES), PROBLEMS)
    n = np.full(len(problem), FRESH)
    solved = rng.binomial(n, chance[policy, problem])
    return Counts(problem, policy, np.zeros(len(problem)), n, solved), chance[-1]


def with_fresh(known: Counts, problem: Ints, n: Ints, solved: Ints, policy: int) -> Counts:
    """Return counts with bare rollouts of one more policy."""
    new = (problem, np.full(len(problem), policy), np.zeros(len(problem)), n, solved)
    old = (known.problem, known.policy, known.share, known.n, known.solved)
    return Counts(*(np.concatenate(pair) for pair in zip(old, new, strict=True)))


def predicted(known: Counts, problem: Ints, n: Ints, solved: Ints, of: Ints, policy: int, domain: Ints) -> Floats:
    """Return the chances of problems from the rollouts of others and some of the policy's own."""
    surface = fit(with_fresh(known, problem, n, solved, policy), Layout(policy + 1, domain))
    return surface.predict(of, np.full(len(of), policy), np.zeros(len(of))).rate


def table(title: str, scores: Iterable[Mapping[str, float]]) -> None:
    """Print mean and standard error over the repetitions of each score."""
    rows = list(scores)
    print(f"\n{title} ({len(rows)} times)")
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        print(f"  {name:58} {values.mean():.4f} +- {values.std(ddof=1) / np.sqrt(len(values)):.4f}")


def of_simulation(seed: int, *, mixed: bool) -> dict[str, float]:
    """Return errors of predictions of a new policy."""
    rng = np.random.default_rng(seed)
    known, chance = simulated(rng, mixed=mixed)
    every, one = np.arange(PROBLEMS), np.ones(PROBLEMS, np.int64)
    first, four = rng.binomial(1, chance), rng.binomial(FRESH, chance)
    few = rng.choice(PROBLEMS, FEW, replace=False)
    args = (every, POLICIES, NO_DOMAINS)
    found = {
        f"{FRESH} fresh samples a problem, k/n": four / FRESH,
        f"{FRESH} fresh samples a problem, (k+1)/(n+2)": (four + 1) / (FRESH + 2),
        f"surface, {FEW} fresh samples in all": predicted(known, few, one[few], first[few], *args),
        "surface, 1 fresh sample a problem": predicted(known, every, one, first, *args),
        f"surface, {FRESH} fresh samples a problem": predicted(known, every, FRESH * one, four, *args),
    }
    return {name: float(np.mean((each - chance) ** 2)) for name, each in found.items()}


def of_spending(seed: int) -> dict[str, float]:
    """Return rollouts for each group of 8 with signal, by the true chances, for half of the rollouts of all."""
    rng = np.random.default_rng(seed)
    known, chance = simulated(rng, mixed=False)
    every, n = np.arange(PROBLEMS), np.full(PROBLEMS, FRESH)
    four = rng.binomial(FRESH, chance)
    surface = fit(with_fresh(known, every, n, four, POLICIES), Layout(POLICIES + 1, NO_DOMAINS))
    posterior = surface.predict(every, np.full(PROBLEMS, POLICIES), np.zeros(PROBLEMS))
    signal = 1 - chance**8 - (1 - chance) ** 8
    taken = spend(posterior.signal(8)[:, None], np.full((PROBLEMS, 1), 8.0), 8 * PROBLEMS / 4) >= 0
    varied = (four > 0) & (four < FRESH)
    return {
        "uniform": 8 / signal.mean(),
        f"uniform, after {FRESH} samples a problem without variance are dropped": 8 / signal[varied].mean(),
        "surface, a quarter of the problems": 8 / signal[taken].mean(),
    }


def of_home(rows: pa.Table, policy: str, seed: int) -> dict[str, float]:
    """Return Brier scores over held-out rollouts of a policy of a home."""
    rng = np.random.default_rng(seed)
    everything = learn(rows)
    at, counts = everything.sampler(policy), everything.counts
    own = counts.policy == at
    tested = own & (counts.share == 0) & (counts.n >= 2 * FRESH)
    problem, n, solved = counts.problem[tested], counts.n[tested], counts.solved[tested]
    fresh = rng.hypergeometric(solved, n - solved, FRESH)
    first = rng.hypergeometric(fresh, FRESH - fresh, 1)
    left, right = n - FRESH, solved - fresh
    known, unseen = (
        Counts(*(each[rows] for each in vars(counts).values()))
        for rows in (~own, ~own & ~np.isin(counts.problem, problem))
    )
    few = rng.choice(len(problem), min(FEW, len(problem) // 3), replace=False)
    one, last = np.ones(len(problem), np.int64), len(everything.samplers)
    of_few = problem[few], one[few], first[few]
    args = (problem, last, everything.surface.layout.domain)
    found = {
        f"{FRESH} fresh samples a problem, k/n": fresh / FRESH,
        f"{FRESH} fresh samples a problem, (k+1)/(n+2)": (fresh + 1) / (FRESH + 2),
        f"surface, {len(few)} fresh samples in all, of others none": predicted(unseen, *of_few, *args),
        f"surface, {len(few)} fresh samples in all": predicted(known, *of_few, *args),
        "surface, 1 fresh sample a problem": predicted(known, problem, one, first, *args),
        f"surface, {FRESH} fresh samples a problem": predicted(known, problem, FRESH * one, fresh, *args),
    }
    return {
        name: float(np.sum(right * (1 - each) ** 2 + (left - right) * each**2) / left.sum())
        for name, each in found.items()
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("--home", type=Path, default=None)
    parser.add_argument("--policy", default="")
    asked = parser.parse_args()
    if asked.home:
        rows = counted(Home(asked.home), print)
        print(f"{ints(rows.column('n')).sum():,} rollouts, {len(rows.column('policy').unique())} policies")
        table("Brier score", (of_home(rows, asked.policy, seed) for seed in range(asked.times or 200)))
        return
    times = range(asked.times or 20)
    for title, mixed in (("error, simulated", False), ("error, simulated, 2PL", True)):
        table(title, (of_simulation(seed, mixed=mixed) for seed in times))
    table("rollouts for each group of 8 with signal, simulated", (of_spending(seed) for seed in times))
    known, _ = simulated(np.random.default_rng(0), mixed=False)
    began = time.perf_counter()
    fit(known, Layout(POLICIES, NO_DOMAINS))
    print(f"\n{len(known.n):,} counts fitted in {time.perf_counter() - began:.2f} s, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
