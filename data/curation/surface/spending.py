"""Problems, hints and samples that make the most groups with signal for a number of tokens."""

import numpy as np
import numpy.typing as npt

from gradus.data.arrays import Floats, Ints

_HALVINGS = 100


def spend(value: Floats, cost: Floats, budget: float) -> Ints:
    """Return the option taken of each problem (P,), -1 for none: those of most value that the budget allows.

    A knapsack of which each problem has at most one of its options, value and cost (P, O) with costs above 0 and NaN
    for an option that it does not have. At a price of tokens each problem takes the option of most value less price;
    the price is the least one that keeps the budget, found by halving. What it leaves is spent on the steps that the
    next lower price would take, the first problems first. The value is short of the best one by less than that of the
    one option that no longer fits (Dantzig, Operations Research 5, 1957).
    """
    there = ~np.isnan(value)
    worth, price_of = np.where(there, value, -np.inf), np.where(there, cost, 0.0)

    def taken(price: float) -> Ints:
        net = worth - price * price_of
        best = net.argmax(axis=1)
        return np.where(_of(net, best) > 0, best, -1)

    low, high = 0.0, float(np.max(np.divide(value, cost), initial=0.0, where=there)) + 1.0
    if _of(price_of, taken(low)).sum() <= budget:
        return taken(low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _of(price_of, taken(middle)).sum() <= budget:
            high = middle
        else:
            low = middle
    chosen, wanted = taken(high), taken(low)
    step = _of(price_of, wanted) - _of(price_of, chosen)
    left = budget - _of(price_of, chosen).sum()
    for at in np.flatnonzero(wanted != chosen):
        if step[at] <= left:
            chosen[at], left = wanted[at], left - step[at]
    return chosen


def _of(table: npt.NDArray[np.float64], option: Ints) -> Floats:
    """Return the number of the option taken in each row (P,); 0 if none is."""
    found = np.take_along_axis(table, np.maximum(option, 0)[:, None], axis=1)[:, 0]
    return np.where(option < 0, 0.0, found)
