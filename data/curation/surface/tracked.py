"""The surface as a tracker keeps it: counts by problem, and the predictions of their model for each problem.

    known = learn(counted(entries(table), problems), problems)
    kept(known, sampler, numbers)          # a row for each problem: PREDICTIONS and KEPT

Counts are kept as lists, an entry for each policy and share of the hint; a policy has the number of its round, one from
before the training a number below 1.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from gradus.components.rows import Lists, Rows
from gradus.data.arrays import Floats, Ints, floats, one_array, positions, ragged, take_or_null
from gradus.data.curation.surface.known import COUNTED, Known
from gradus.data.curation.surface.model import Predicted

STEPS = 20
"""Shares of hints are kept in twentieths."""
PREDICTIONS = ("p", "sd", "logit", "gain", "logit_var", "gain_var", "covariance", "tokens")
"""The chance to solve without a hint and its standard deviation; the logit and what a whole hint adds to it, with their
variances and covariance; expected completion tokens."""
KEPT = ("rounds", "shares", "right", "wrong", "lengths")
"""Policy, share, right and wrong answers and mean tokens of each entry, 0 tokens if they are unknown."""


def kept(known: Known, sampler: int, numbers: Ints) -> dict[str, Any]:
    """Return the columns of a tracker of the surface, a row for each problem, predicted for one of the samplers.

    `numbers` are what the samplers are called in the lists (J,).
    """
    counts, num = known.counts, len(known.problem_ids)
    order = np.lexsort((counts.share, numbers[counts.policy], counts.problem))
    offsets = np.searchsorted(counts.problem[order], np.arange(num + 1))
    right = counts.solved.astype(np.float64)
    cells = (
        numbers[counts.policy].astype(np.float64),
        counts.share,
        right,
        counts.n - right,
        np.nan_to_num(known.tokens),
    )
    line = known.surface.lines(sampler)
    bare = Predicted(line.bare, np.sqrt(line.bare_var))
    tokens = known.expected_tokens(np.arange(num), np.zeros(num))
    return {
        "problem_id": known.problem_ids,
        "p": bare.rate,
        "sd": bare.rate_sd,
        "logit": line.bare,
        "gain": line.gain,
        "logit_var": line.bare_var,
        "gain_var": line.gain_var,
        "covariance": line.covariance,
        "tokens": tokens,
        **{name: Lists(values[order], offsets) for name, values in zip(KEPT, cells, strict=True)},
    }


def in_steps(chars: Floats, whole: Floats) -> Floats:
    """Return the share that hints of some characters are of solutions, in twentieths; NaN without a solution.

    A hint is a twentieth at least, and the whole at most.
    """
    part = np.divide(chars, whole, out=np.full(len(chars), np.nan), where=whole > 0)
    return np.clip(np.floor(STEPS * part + 0.5), 1, STEPS) / STEPS


def shown_shares(rows: Rows) -> Floats:
    """Return the share of the worked solution in each row's hint (N,): 0 without a hint, NaN if it is unknown."""
    part = in_steps(lengths_of(rows["hint_text"]), lengths_of(rows["problem.solution"]))
    return np.where(np.nan_to_num(rows["hint_level"]) > 0, part, 0.0)


def lengths_of(texts: Any) -> Floats:
    """Return the characters of texts (N,), 0 for None."""
    return np.array([len(each) if isinstance(each, str) else 0 for each in texts], dtype=np.float64)


def entries(table: pa.Table) -> pa.Table:
    """Return the kept lists of problems as rows of one entry each: problem_id and the columns of KEPT."""
    if not table.num_rows:
        return pa.table({"problem_id": pa.array([], pa.string()), **dict.fromkeys(KEPT, pa.array([], pa.float64()))})
    lists = {name: ragged(table.column(name)) for name in KEPT}
    number = np.repeat(np.arange(table.num_rows), np.diff(lists[KEPT[0]][0]))
    columns = {name: values.cast(pa.float64()) for name, (_, values) in lists.items()}
    return pa.table({"problem_id": one_array(table.column("problem_id")).take(pa.array(number)), **columns})


def counted(table: pa.Table, problems: pa.Table) -> pa.Table:
    """Return entries as rows of COUNTED, policies called by their numbers, domains those of `problems`."""
    number, right, wrong = (
        np.rint(floats(table.column(name))).astype(np.int64) for name in ("rounds", "right", "wrong")
    )
    length = floats(table.column("lengths"))
    at = positions(table.column("problem_id"), problems.column("problem_id"))
    columns = {
        "problem_id": table.column("problem_id"),
        "domain": take_or_null(problems.column("domain"), at),
        "policy": pa.array(number).cast(pa.string()),
        "temperature": pa.nulls(table.num_rows, pa.float64()),
        "share": table.column("shares"),
        "n": right + wrong,
        "solved": right,
        "tokens": pa.array(length, mask=~(length > 0)),
    }
    return pa.table(columns).cast(COUNTED)
