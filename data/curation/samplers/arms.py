"""Draws of kinds of problems before problems: the arms of a bandit."""

from typing import Annotated

import numpy as np
from annotated_types import Gt

from gradus.components import component
from gradus.components.rows import Rows, numbered
from gradus.data.arrays import Floats
from gradus.data.curation.results import Draw


@component("sampler", paper="arXiv 2505.14970", needs=("domain", "sec.gain"))
def sec(candidates: Rows, num: int, rng: np.random.Generator, *, temperature: Annotated[float, Gt(0.0)] = 0.5) -> Draw:
    """Draw a domain by the softmax of what was learned from it of late, then one of its problems, `num` times (SEC).

    SEC (arXiv 2505.14970): P(domain) in proportion to exp(Q / temperature), where the tracker `sec` keeps Q, 0 where
    nothing is known. A domain whose problems are all drawn is left out; those without a domain are one. Weights are
    the probabilities of the domains at first.

    Args:
        temperature: Of the softmax; small takes the best domain alone.
    """
    arm = numbered([[each or "" for each in candidates["domain"]]])
    gain = np.zeros(int(arm.max(initial=-1)) + 1)
    gain[arm] = np.nan_to_num(candidates["sec.gain"])
    left = [rng.permutation(np.flatnonzero(arm == each)).tolist() for each in range(len(gain))]
    index: list[int] = []
    while len(index) < min(num, candidates.num_rows):
        odds = _softmax(np.where([bool(problems) for problems in left], gain, -np.inf) / temperature)
        index.append(left[rng.choice(len(odds), p=odds)].pop())
    taken, unknown = np.array(index, dtype=np.int64), np.isnan(candidates["sec.gain"])
    return Draw(taken, _softmax(gain / temperature)[arm[taken]], unknown[taken])


def _softmax(values: Floats) -> Floats:
    odds = np.exp(values - values.max(initial=-np.inf))
    return odds / odds.sum()
