"""Mean and population variance of rewards per group, and how two sets of them are merged.

    summarise(reward, problem, num_groups=2)       # what one batch of rollouts says of each problem
    merge(before, new)                             # as if both batches had been one

Population variance divides by n (ddof 0): it describes these rollouts, and a single one has variance 0.
"""

from dataclasses import dataclass

import numpy as np

from gradus.data.arrays import Floats, Ints


@dataclass(frozen=True)
class Grades:
    """Rewards of each group in three numbers, each (G,): count, mean and population variance; NaN where n is 0."""

    n: Ints
    mean: Floats
    variance: Floats

    def take(self, index: Ints) -> "Grades":
        """Return the groups at these indices; an empty one for index -1."""
        return Grades(np.append(self.n, 0)[index], *(np.append(x, np.nan)[index] for x in (self.mean, self.variance)))


def summarise(reward: Floats, group: Ints, *, num_groups: int, times: Ints | None = None) -> Grades:
    """Count, mean and population variance of rewards (N,) in groups (N,) numbered 0..G-1; a NaN reward is left out.

    Each counts once, or `times` (N,). They are added in their order.
    Both are computed from the distance to the group's least reward, in two passes: equal rewards have exactly their
    value as mean and exactly 0 as variance, whatever their size.
    """
    known = ~np.isnan(reward)
    reward, group = reward[known], group[known]
    times = np.ones(len(reward), dtype=np.int64) if times is None else times[known]
    n = np.bincount(group, times, num_groups).astype(np.int64)  # exact below 2^53
    least = np.full(num_groups, np.inf)
    np.minimum.at(least, group, reward)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = least + np.bincount(group, weights=times * (reward - least[group]), minlength=num_groups) / n
        squares = np.bincount(group, weights=times * (reward - mean[group]) ** 2, minlength=num_groups)
        return Grades(n, np.where(n > 0, mean, np.nan), np.where(n > 0, squares / n, np.nan))


def merge(a: Grades, b: Grades) -> Grades:
    """The grades of both sets of rewards taken together, group by group.

    With d the difference of the means, n = n_a + n_b:
    mean = mean_a + d n_b / n and n variance = n_a variance_a + n_b variance_b + d^2 n_a n_b / n
    (Chan, Golub, LeVeque 1979).
    """
    n = a.n + b.n
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = b.mean - a.mean
        mean = a.mean + difference * (b.n / n)
        squares = a.n * a.variance + b.n * b.variance + difference**2 * (a.n * (b.n / n))
        both = Grades(n, mean, squares / n)
    only_a, only_b = b.n == 0, a.n == 0
    return Grades(
        n,
        np.where(only_a, a.mean, np.where(only_b, b.mean, both.mean)),
        np.where(only_a, a.variance, np.where(only_b, b.variance, both.variance)),
    )
