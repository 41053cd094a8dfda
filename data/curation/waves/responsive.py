"""A wave that chooses how much help each problem is shown from how it was answered with less or more."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from gradus.components import component
from gradus.data.arrays import Floats, bools, floats, ints
from gradus.data.curation.round import Planned, Round

_HALVES = np.arange(-100, 201) / 100.0
"""Shares of the solution at which a problem may be half solved, in steps of one percent."""


@component("wave", paper="arXiv 2509.06923", needs=("group", "problem_id", "correct", "hint_level", "hint"))
def seele(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    target: Annotated[float, Gt(0.0), Lt(1.0)] = 0.5,
    slope: Annotated[float, Gt(0.0)] = 8.0,
    guess: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0,
    tolerance: Annotated[float, Ge(0.0), Le(1.0)] = 0.125,
) -> Planned | None:
    """Sample each problem again with the hint at which its pass rate is expected to be `target` (SEELE).

    SEELE (arXiv 2509.06923): P(correct | h) = guess + (1 - guess) / (1 + exp(-slope (h - b))) with the share h of the
    solution that is shown, fitted by least squares to the problem's pass rates so far; the next h is where P is
    `target`, and the nearest hint that there is is shown. All completions of a problem are one group.
    Deviations: slope and guess are settings and b alone is fitted, since a problem has two or three pass rates. A
    problem whose last pass rate is within `tolerance` of the target is left, and one whose nearest hint was shown.

    Args:
        target: Pass rate that is aimed at.
        slope: Steepness of the curve.
        guess: Pass rate of a policy that knows nothing.
        tolerance: Distance from the target that is close enough.
    """
    rows, shares = round.rows, _shares(round)
    _, first = np.unique(rows.by("problem_id", "hint_level").of, return_index=True)
    first = np.sort(first)  # in the order of the calls
    problem, level = rows["problem_id"][first], np.nan_to_num(rows["hint_level"])[first].astype(int)
    rate = rows.by("problem_id", "hint_level").mean(rows["correct"])[first]
    places: list[int] = []
    levels: list[int] = []
    reasons: list[str] = []
    for name, shown in shares.items():
        tried = [each for each in np.flatnonzero(problem == name) if level[each] in shown]
        if not tried or abs(rate[tried[-1]] - target) <= tolerance:
            continue
        wanted = share_of(np.array([shown[level[i]] for i in tried]), rate[tried], target, slope, guess)
        nearest = min(shown, key=lambda each: (abs(shown[each] - wanted), each))
        if nearest not in level[tried]:
            places.append(int(first[tried[0]]))
            levels.append(nearest)
            last = shown[level[tried[-1]]]
            reasons.append(f"pass rate {rate[tried[-1]]:.3f} with {last:.2f} of the solution, {wanted:.2f} is wanted")
    like = np.array(places, dtype=np.int64)
    texts = {each: round.hint(like, each)[0].to_pylist() for each in set(levels)}
    hints = [texts[each][at] if each else None for at, each in enumerate(levels)]
    group = rows["group"][like]
    return round.plan(like=like, group=group, hint_level=levels, hint_text=hints, reason=reasons) if places else None


def share_of(shares: Floats, rates: Floats, target: float, slope: float, guess: float) -> float:
    """Return the share of a solution, 0 to 1, at which the curve fitted to pass rates is `target`; see `seele`."""
    curve = guess + (1 - guess) / (1 + np.exp(-slope * (shares[None, :] - _HALVES[:, None])))
    half = _HALVES[np.argmin(((curve - rates[None, :]) ** 2).sum(1))]
    aim = (max(target, guess + 1e-3) - guess) / (1 - guess)
    return float(np.clip(half + np.log(aim / (1 - aim)) / slope, 0.0, 1.0))


def _shares(round: Round) -> dict[str, dict[int, float]]:
    """Return the share of the solution that each level of each problem shows, 0 at level 0; without withheld hints."""
    found: dict[str, dict[int, float]] = {}
    if (table := round.hints) is not None:
        served = np.flatnonzero(~bools(table.column("leaks_answer")))
        names = table.column("problem_id").take(served).to_pylist()
        levels, shares = ints(table.column("level"))[served], floats(table.column("fraction"))[served]
        for name, level, share in zip(names, levels.tolist(), shares.tolist(), strict=True):
            found.setdefault(name, {0: 0.0}).setdefault(level, share)
    return found
