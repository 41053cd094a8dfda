"""A tracker of the response surface: the chance of every problem to be solved, with a hint or without one."""

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from annotated_types import Ge

from gradus.components import component
from gradus.data.arrays import Floats, Ints, nulls, one_array
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.surface.known import learn
from gradus.data.curation.surface.tracked import (
    KEPT,
    PREDICTIONS,
    STEPS,
    counted,
    entries,
    kept,
    shown_shares,
)
from gradus.data.curation.tracked import Tracked

_ANOTHER_PROMPT = ("messages", "parent", "recall")


@component(
    "tracker",
    libraries=("scipy",),
    columns=(
        "p",
        "sd",
        "logit",
        "gain",
        "logit_var",
        "gain_var",
        "covariance",
        "tokens",
        "rounds",
        "shares",
        "right",
        "wrong",
        "lengths",
    ),
    needs=(
        "problem_id",
        "correct",
        "hint_level",
        "hint_text",
        "origin",
        "length",
        "messages",
        "parent",
        "recall",
        "temperature",
        "problem.solution",
        "problem.domain",
        "n",
        "k",
    ),
)
def surface(before: Tracked, round: Round, *, window: Annotated[int, Ge(1)] = 32) -> dict[str, Any]:
    """Keep the chance of every problem to be solved by the newest policy, with a share of its hint or without one.

    logit P(solve) = ability[policy] - difficulty[problem] + (gain + extra[problem]) share, the model of `gradus
    surface`, fitted anew in each round to all judged rollouts of the run, each round's policy for itself, and to those
    that `start` has of others (`gradus surface --tracker FILE`). A problem that was never sampled has the difficulty of
    its domain. Of a problem that is new to the tracker its measured n and k count, too. Left out are given texts,
    greedy rollouts, continued and recalled ones, prompts of waves, and hints of problems without a worked solution.

    Args:
        window: Rounds whose rollouts count at most; those of before the training count always.
    """
    pool = round.candidates
    problems = pa.table({"problem_id": one_array(pool.arrow("problem_id")), "domain": _texts(pool["problem.domain"])})
    table = pa.concat_tables([entries(before.table), _measured(before, round), _sampled(round)])
    number = np.asarray(table.column("rounds"))
    table = table.filter(pa.array((number <= 0) | (number > round.index - window)))
    if not table.num_rows:
        return {name: [] for name in ("problem_id", *PREDICTIONS, *KEPT)}
    known = learn(counted(table, problems), problems)
    numbers = np.array([int(each.policy) for each in known.samplers])
    return kept(known, int(numbers.argmax()), numbers)


def _measured(before: Tracked, round: Round) -> pa.Table:
    """Return an entry for the measured n and k of each problem that is not kept yet, of the policy before the round."""
    pool = round.candidates
    n, k = pool["n"].astype(np.float64), pool["k"].astype(np.float64)
    names = pool["problem_id"].astype(str)
    new = (n > 0) & ~np.isin(names, before["problem_id"].astype(str))
    num = int(new.sum())
    return _entries(names[new], np.full(num, round.index - 1.0), np.zeros(num), k[new], (n - k)[new], np.zeros(num))


def _sampled(round: Round) -> pa.Table:
    """Return an entry for each problem and share of its hint that the policy sampled in the round."""
    rows = round.rows
    share = shown_shares(rows)
    own = own_rows(rows) & ~np.isnan(rows["correct"]) & ~np.isnan(share) & ~(rows["temperature"] == 0)
    for name in _ANOTHER_PROMPT:
        own &= nulls(rows.arrow(name))
    names, number = np.unique(rows["problem_id"][own].astype(str), return_inverse=True)
    cells, cell = np.unique(number * (STEPS + 1) + np.rint(share[own] * STEPS).astype(np.int64), return_inverse=True)
    right, n = np.bincount(cell, rows["correct"][own], len(cells)), np.bincount(cell, minlength=len(cells))
    length = rows["length"][own].astype(np.float64)
    there = ~np.isnan(length)
    sums, num = (np.bincount(cell[there], each, len(cells)) for each in (length[there], np.ones(int(there.sum()))))
    mean = np.divide(sums, num, out=np.zeros(len(cells)), where=num > 0)
    of, step = np.divmod(cells, STEPS + 1)
    return _entries(names[of], np.full(len(cells), float(round.index)), step / STEPS, right, n - right, mean)


def _entries(names: Any, *columns: Floats | Ints) -> pa.Table:
    found = {name: pa.array(values.astype(np.float64)) for name, values in zip(KEPT, columns, strict=True)}
    return pa.table({"problem_id": pa.array(names, pa.string()), **found})


def _texts(values: Any) -> pa.Array:
    return pa.array([None if each is None else str(each) for each in values], pa.string())
