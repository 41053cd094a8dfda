"""Coverage of the intervals of `gradus compare`: how often they hold the true difference of two methods.

    python benchmarks/coverage.py                      # 2,000 repetitions a row
    python benchmarks/coverage.py --repetitions 200 --bootstrap 200

Simulates paired differences of two methods, each with its own effect of seeds: normal values, or verdicts of four
samples a problem. Prints the share of 95 % intervals that hold the truth, their mean half width in points, and the same
of a bootstrap that resamples seeds and problems (percentiles, on the first repetitions alone).
"""

import argparse

import numpy as np
from scipy import stats

from gradus.data.intervals import crossed


def normal(rng: np.random.Generator, shape: tuple[int, int, int], over_seeds: float, effect: float) -> np.ndarray:
    """Differences with a spread of 20 points in cells and 10 over problems."""
    num, seeds, problems = shape
    values = effect + 0.2 * rng.standard_normal(shape) + 0.1 * rng.standard_normal((num, 1, problems))
    return values + over_seeds * np.sqrt(2) * rng.standard_normal((num, seeds, 1))


def verdicts(rng: np.random.Generator, shape: tuple[int, int, int], over_seeds: float, effect: float) -> np.ndarray:
    """Differences of the pass rates of four samples; rates stay away from 0 and 1, so that the effect is exact."""
    num, seeds, problems = shape
    solved = 0.2 + 0.6 * rng.beta(0.5, 0.5, size=(num, 1, problems))
    rates = [solved + over_seeds * rng.uniform(-1.7, 1.7, (num, seeds, 1)) + shift for shift in (0.0, effect)]
    return rng.binomial(4, rates[1]) / 4 - rng.binomial(4, rates[0]) / 4


def bootstrap(values: np.ndarray, rng: np.random.Generator, resamples: int) -> tuple[float, float]:
    seeds, problems = values.shape
    drawn = rng.multinomial(seeds, np.full(seeds, 1 / seeds), resamples) / seeds
    weight = rng.multinomial(problems, np.full(problems, 1 / problems), resamples) / problems
    means = np.einsum("rp,rp->r", drawn @ values, weight)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def row(rng: np.random.Generator, draw: object, shape: tuple[int, int, int], over_seeds: float, effect: float,
        num_bootstrap: int) -> str:  # fmt: skip
    """Return a row of the table."""
    num, seeds, problems = shape
    hits, widths, old = [], [], []
    while len(hits) * 50 < num:
        values = draw((50, seeds, problems), over_seeds, effect)  # type: ignore[operator]
        found = crossed(values)
        half = stats.t.ppf(0.975, found.freedom) * np.sqrt(found.variance)
        hits.append((np.abs(found.mean - effect) <= half).mean())
        widths.append(half.mean())
        for each in values[: max(0, num_bootstrap - len(old))]:
            low, high = bootstrap(each, rng, 500)
            old.append(low <= effect <= high)
    before = f"{np.mean(old):.3f}" if old else "-"
    return f"{100 * np.mean(hits):5.1f} {100 * np.mean(widths):6.2f}   {before}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--bootstrap", type=int, default=0, help="repetitions of which the bootstrap is computed, too")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    print("values    problems seeds  SD/seeds effect  covered half width   bootstrap")
    for name, draw in (("normal", normal), ("verdicts", verdicts)):
        for problems in (144, 500, 1319):
            for seeds in (3, 5, 10):
                for over_seeds, effect in ((0.03, 0.0), (0.03, 0.04), (0.0, 0.0)):
                    shape = (given.repetitions, seeds, problems)
                    found = row(rng, lambda *a, d=draw: d(rng, *a), shape, over_seeds, effect, given.bootstrap)
                    print(f"{name:9} {problems:8} {seeds:5} {over_seeds:9} {effect:6}   {found}", flush=True)


if __name__ == "__main__":
    main()
