"""The policy's own completions under a prompt that says more than they were sampled after."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.components import component
from gradus.components.rows import Rows
from gradus.models.measuring import Model

_SHOWN = "{question}\n\nHere is a worked solution:\n{solution}\n\nNow solve the problem in your own words."
_PEER = "{peer}"
_PLACE = re.compile(r"\{(question|solution|answer|peer)\}")


@component(
    "measure",
    paper="arXiv 2601.18734",
    by=("rollout_id",),
    columns=("logp",),
    needs=(
        "completion",
        "completion_tokens",
        "temperature",
        "correct",
        "group",
        "problem.question",
        "problem.solution",
        "problem.answer",
    ),
)
def privileged(rows: Rows, model: Model, *, template: str = _SHOWN) -> Mapping[str, Any]:
    """Return the log-prob (nats) of each token of each completion behind a prompt that says more, as lists.

    The policy that is shown the solution, or a right answer of its own, is the teacher of the one that is not:
    OPSD (arXiv 2601.18734), SDFT (arXiv 2601.19897), SDPO (arXiv 2601.20802). The temperature is that of the row. No
    list for a row of which something that the template names is missing, or that does not fit the model's positions.

    Args:
        template: The question as it is shown, with {question}; {solution} is the worked solution, {answer} the gold
            answer, {peer} the first other right completion of the row's group. Empty for one with {solution}.
    """
    template = template or _SHOWN
    fields = {name: rows[f"problem.{name}"] for name in ("question", "solution", "answer")}
    fields["peer"] = _peers(rows) if _PEER in template else [None] * rows.num_rows
    used = [name for name in fields if f"{{{name}}}" in template]
    whole = [row for row in range(rows.num_rows) if all(fields[name][row] for name in used)]
    texts = [_PLACE.sub(lambda found, row=row: str(fields[found[1]][row]), template) for row in whole]
    contexts: list[list[int]] = [[]] * rows.num_rows
    for row, tokens in zip(whole, model.prompts(texts), strict=True):
        contexts[row] = tokens
    targets = rows["completion_tokens"]
    found = model.logprobs(contexts, targets, temperature=rows["temperature"]).logp
    lists = [found[row].tolist() if len(found[row]) else None for row in range(rows.num_rows)]
    return {"logp": pa.array(lists, pa.list_(pa.float64()))}  # typed: there may be none at all


def _peers(rows: Rows) -> list[str | None]:
    """Return for each row the first right completion of its group that is not its own, None without one."""
    right: dict[int, list[int]] = {}
    for row in np.flatnonzero(rows["correct"] == 1):
        right.setdefault(int(rows["group"][row]), []).append(int(row))
    others = [[one for one in right.get(int(group), [])[:2] if one != row] for row, group in enumerate(rows["group"])]
    return [rows["completion"][found[0]] if found else None for found in others]
