"""Disagreement of the answers of a group about the next token, place by place."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Floats, Ints, Lists, Rows
from gradus.models.measuring import Model

_MOST = 11.0
"""|difference| of log-probs beyond this is cut, as in TW-GRPO's code."""


@component(
    "measure",
    paper="arXiv 2505.24718",
    by=("rollout_id",),
    columns=("tokens",),
    needs=("group", "prompt_tokens", "completion_tokens"),
)
def divergence(rows: Rows, model: Model, *, k: Annotated[int, Ge(1)] = 16) -> Mapping[str, Any]:
    """Return how far the distributions of a group's answers at each place lie from their mean, nats, as lists.

    D_t = mean over answers i of sum over tokens v of exp(d) - d - 1, d = mean_j log p_j(v) - log p_i(v) at the t-th
    token of each, temperature 1; all answers of a group have the same D_t. TW-GRPO, arXiv 2505.24718, as in the
    authors' code (grpo_trainer.py). Deviations: v are the k most likely tokens of any of the answers, and one outside
    of an answer's own k has the log-prob of its last; answers that have ended do not count, where theirs are uniform.

    Args:
        k: Most likely tokens of each answer at each place; all of the vocabulary is the sum of the paper.
    """
    found = model.logprobs(rows["prompt_tokens"], rows["completion_tokens"], top=k)
    tokens = [np.zeros(0)] * rows.num_rows
    for number in np.unique(rows["group"]):
        members = np.flatnonzero(rows["group"] == number)
        places = _divergences([found.top_ids[row] for row in members], [found.top_logp[row] for row in members], k)
        for row in members:
            tokens[row] = places[: len(found.top_ids[row])]
    lengths = np.array([len(each) for each in tokens], dtype=np.int64)
    values = np.concatenate(tokens) if tokens else np.zeros(0)
    return {"tokens": Lists(values, np.concatenate([np.zeros(1, np.int64), lengths.cumsum()]))}


def _divergences(ids: Sequence[Floats | Ints], logp: Sequence[Floats | Ints], k: int) -> Floats:
    """D of each place of a group, (P,), from the k likeliest tokens of its answers, (L, k) each."""
    num, answers = max(map(len, ids), default=0), len(ids)
    token = np.full((num, answers, k), -1, dtype=np.int64)
    known, there = np.zeros((num, answers, k)), np.zeros((num, answers), dtype=np.bool_)
    for answer, (own, likely) in enumerate(zip(ids, logp, strict=True)):
        token[: len(own), answer], known[: len(own), answer] = own, likely
        there[: len(own), answer] = True
    place, flat = np.arange(num)[:, None], token.reshape(num, answers * k)
    column = _numbered(flat)
    table = np.repeat(known.min(-1)[:, None], int(column.max(initial=0)) + 1, axis=1)  # (P, tokens, answers)
    table[place, column, np.repeat(np.arange(answers), k)] = known.reshape(num, answers * k)
    real = np.zeros(table.shape[:2], dtype=np.bool_)
    real[place, column] = flat >= 0
    count = there.sum(1)
    mean = (table * there[:, None]).sum(-1) / count[:, None]
    difference = np.clip(mean[:, :, None] - table, -_MOST, _MOST)
    terms = (np.exp(difference) - difference - 1) * (real[:, :, None] & there[:, None])
    return terms.sum((1, 2)) / count


def _numbered(values: Ints) -> npt.NDArray[np.int64]:
    """Number the values of each line, equal ones alike, from 0."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, 1)
    number = np.cumsum(np.diff(ordered, axis=1, prepend=ordered[:, :1]) != 0, axis=1)
    found = np.empty_like(order)
    np.put_along_axis(found, order, number, 1)
    return found
