"""Problems by how hard they were for the starting policy, measured on other samples than the start itself.

Problems that were solved by luck before look worse afterwards without any training, and those that failed by bad luck
look better. So the verdicts of the start are split at random: one half puts a problem into a band, the other half is
the pass@1 that the band had before.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from gradus.data.arrays import Floats, Ints
from gradus.data.paired import BANDS, difficulty_band, sole_winners
from gradus.data.seeds import derive_seed

UNSPLIT = (
    "by difficulty: problems have one verdict of the start, which cannot be split; a band's start would be what put "
    "problems into it, and is left out"
)


class Band(TypedDict):
    """Problems of one difficulty: pass@1 before and after, and at how many problems a method alone is the best."""

    band: str
    problems: int
    before: float | None
    pass_at_1: dict[str, float]
    wins: dict[str, int]


class Start(NamedTuple):
    """Judged and correct rollouts of the starting policy by problem, (P,)."""

    n: Ints
    k: Ints


def by_difficulty(names: Sequence[str], start: Start, after: Sequence[Floats]) -> list[Band]:
    """Return figures by the pass rate before training; `after` has (S, P) rates by method."""
    bands, before = _split(start)
    rate = np.stack([each.mean(axis=0) for each in after])
    alone = sole_winners(rate)
    return [
        {
            "band": BANDS[b],
            "problems": int((bands == b).sum()),
            "before": None if before is None else float(before[bands == b].mean()),
            "pass_at_1": {name: float(rate[i, bands == b].mean()) for i, name in enumerate(names)},
            "wins": {name: int(alone[i, bands == b].sum()) for i, name in enumerate(names)},
        }
        for b in np.unique(bands).tolist()
    ]


def can_split(start: Start) -> bool:
    """Return whether each problem has two verdicts of the start."""
    return bool((start.n >= 2).all())


def _split(start: Start) -> tuple[Ints, Floats | None]:
    """Return the band of each problem, and its pass rate on the other verdicts.

    How many of a random half are correct is hypergeometric: which samples these were does not matter.
    """
    n, k = start
    if not can_split(start):
        return difficulty_band(k / n), None
    half = n // 2
    rng = np.random.default_rng(derive_seed("compare", "difficulty"))
    of_half = rng.hypergeometric(k, n - k, half)
    return difficulty_band(of_half / half), (k - of_half) / (n - half)
