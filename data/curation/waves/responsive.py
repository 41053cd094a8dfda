"""Waves that choose how much help each problem is shown from how it was answered with less or more."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
from annotated_types import Ge, Gt, Le, Lt

from gradus.components import component
from gradus.data.arrays import Floats, Ints, bools, floats, ints
from gradus.data.curation.round import Planned, Round, RoundRows, first_rows, own_rows
from gradus.data.curation.surface.tracked import in_steps, lengths_of, shown_shares
from gradus.data.curation.surface.updating import chances_after

_HALVES = np.arange(-100, 201) / 100.0
"""Shares of the solution at which a problem may be half solved, in steps of one percent."""
_DOUBT = 0.05
"""Probability below which a hint is taken to be of no use."""
_UNKNOWN, _NONE = "the tracker `surface` does not know the problem yet", "no hint is left"
_WITHHELD, _NO_HELP = "the hint states the answer", "no hint is expected to help"


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


@component(
    "wave",
    libraries=("scipy",),
    needs=(
        "group",
        "problem_id",
        "correct",
        "origin",
        "hint_level",
        "hint_text",
        "hint",
        "problem.solution",
        "surface.logit",
        "surface.gain",
        "surface.logit_var",
        "surface.gain_var",
        "surface.covariance",
    ),
)
def surface_hints(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    target: Annotated[float, Gt(0.0), Lt(1.0)] = 0.5,
    least: Annotated[float, Gt(0.0), Lt(1.0)] = 0.05,
) -> Planned | None:
    """Sample the groups whose every rollout failed again, with the hint whose predicted chance is nearest to `target`.

    The tracker `surface` predicts logit P(solve) = logit + gain share of each problem, both normal; here the round's
    own answers to the problem, right and wrong with the share that each was shown, are added to that (Bayes' rule), and
    the chance with each hint that there is is its mean. Without a hint that is nearer to the target than what was shown
    the group is left alone, and with one whose chance is below `least` with a probability of 95 %. So a hint is tried
    while its gain is unknown. The share of a hint is its length over that of the worked solution, or what its table
    says without one.

    Args:
        target: Chance to solve that is aimed at.
        least: Chance below which a hint is not worth its rollouts.
    """
    rows = round.rows
    by, correct = rows.by("group"), rows["correct"]
    wrong = round.newest & own_rows(rows) & (by.sum(np.where(correct == 1, 1.0, 0.0)) == 0)
    unjudged = by.sum(np.isnan(correct).astype(float)) > 0
    undecided, failed = first_rows(rows, wrong & unjudged), first_rows(rows, wrong & ~unjudged)
    hints, withheld = _hints(round, failed)
    shown = shown_shares(rows)
    skipped = dict.fromkeys((_UNKNOWN, _NONE, _WITHHELD, _NO_HELP), 0)
    chosen: list[tuple[int, _Hint, str]] = []
    for row in failed.tolist():
        seen = rows["hint_text"][rows["problem_id"] == rows["problem_id"][row]]
        left = [each for each in hints.get(row, []) if each.text not in seen]
        if np.isnan(rows["surface.logit"][row]):
            skipped[_UNKNOWN] += 1
        elif not left:
            skipped[_WITHHELD if row in withheld else _NONE] += 1
        else:
            (before, *chances), (_, *reach) = _chances(rows, row, shown, [each.share for each in left], least)
            best = min(range(len(left)), key=lambda at: abs(chances[at] - target))
            if reach[best] < _DOUBT or abs(chances[best] - target) >= abs(before - target):
                skipped[_NO_HELP] += 1
                continue
            reason = f"all wrong with {shown[row]:.2f} of the solution, {chances[best]:.2f} expected with {{:.2f}}"
            chosen.append((row, left[best], reason.format(left[best].share)))
    return round.plan(
        like=np.array([row for row, _, _ in chosen], dtype=np.int64),
        hint_level=pa.array([hint.level for _, hint, _ in chosen], pa.int32()),
        hint_text=pa.array([hint.text for _, hint, _ in chosen], pa.string()),
        reason=[reason for _, _, reason in chosen],
        skipped={"not every rollout was judged": len(undecided), **skipped},
    )


class _Hint(NamedTuple):
    """A hint of a problem, and the share of the worked solution that it is."""

    level: int
    text: str
    share: float


def _hints(round: Round, rows: Ints) -> tuple[dict[int, list[_Hint]], set[int]]:
    """Return the hints of the problem of each of some rows, and the rows of whose hints one is withheld."""
    found: dict[int, list[_Hint]] = {}
    withheld: set[int] = set()
    if (table := round.hints) is None:
        return found, withheld
    keys = zip(*(table.column(name).to_pylist() for name in ("problem_id", "level")), strict=True)
    fraction = dict(zip(keys, floats(table.column("fraction")).tolist(), strict=True))
    names, whole = round.rows["problem_id"][rows], lengths_of(round.rows["problem.solution"][rows])
    for level in np.unique(ints(table.column("level"))).tolist():
        texts, kept_back = round.hint(rows, level)
        withheld |= set(rows[kept_back].tolist())
        part = in_steps(lengths_of(texts.to_pylist()), whole)
        for row, name, text, share in zip(rows.tolist(), names, texts.to_pylist(), part.tolist(), strict=True):
            known = fraction.get((name, level), np.nan) if np.isnan(share) else share
            if text is not None and not np.isnan(known):
                found.setdefault(row, []).append(_Hint(level, text, known))
    return found, withheld


def _chances(rows: RoundRows, row: int, shown: Floats, shares: Sequence[float], least: float) -> tuple[Floats, Floats]:
    """Return the chance of a row's problem with the share that the row was shown, and with each of some shares.

    With it the probability that each is at least `least`.
    """
    answered = (rows["problem_id"] == rows["problem_id"][row]) & own_rows(rows)
    answered &= ~np.isnan(rows["correct"]) & ~np.isnan(shown)
    bare, gain, covariance = (rows[f"surface.{name}"][row] for name in ("logit_var", "gain_var", "covariance"))
    mean = np.array([rows["surface.logit"][row], rows["surface.gain"][row]])
    spread = np.array([[bare, covariance], [covariance, gain]])
    asked = np.array([np.nan_to_num(shown[row]), *shares])
    return chances_after(mean, spread, shown[answered], rows["correct"][answered], asked, least)


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
