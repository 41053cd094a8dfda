"""Scores of texts by a reward model."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from gradus.components import component
from gradus.components.rows import Rows
from gradus.models.measuring import Model
from gradus.models.rewards.text import visible_text


@component(
    "measure",
    by=("rollout_id",),
    columns=("value",),
    needs=("completion", "problem.question", "problem.messages"),
    needs_head=True,
)
def reward_model(rows: Rows, model: Model, *, behind_thinking: bool = False) -> Mapping[str, Any]:
    """Return the number that a reward model has for each problem with its completion, as its own tokens.

    NaN for a completion that does not fit the model's positions with its problem. With `behind_thinking` it is r(x, y)
    of a completion z y, as in RLMT (arXiv 2509.20357): y stands behind the last </think>, and is all of a completion
    without one; NaN for one that never ends to think.

    Args:
        behind_thinking: True to score only what stands behind the thinking.
    """
    questions, messages, said = rows["problem.question"], rows["problem.messages"], rows["completion"]
    if behind_thinking:
        said = [None if text is None else visible_text(text) for text in said]
    return {"value": model.values(model.answered(questions, said, messages))}


@component(
    "measure",
    by=("rollout_id",),
    columns=("values", "least", "mean", "last"),
    needs=("completion", "problem.question", "problem.messages"),
    needs_head=True,
)
def step_rewards(rows: Rows, model: Model, *, separator: Annotated[str, MinLen(1)] = "\n") -> Mapping[str, Any]:
    """Return the numbers that a reward model has for each beginning of a completion that ends with a step.

    Least number as the reward of a solution: Math-Shepherd (arXiv 2312.08935). Each beginning is scored as
    `reward_model` scores a completion, so a reward model of whole answers serves too. None and NaN for a completion
    without a step, or with a beginning that does not fit the model's positions.
    Deviation: a pass for each step, not one with a head at every separator.

    Args:
        separator: Text between two steps; blank ones are none.
    """
    parts = [beginnings(text or "", separator) for text in rows["completion"]]
    row = np.repeat(np.arange(len(parts)), [len(each) for each in parts])
    questions, messages = (list(rows[name]) for name in ("problem.question", "problem.messages"))
    texts = model.answered(
        [questions[at] for at in row], [text for each in parts for text in each], [messages[at] for at in row]
    )
    found = np.split(model.values(texts), np.searchsorted(row, np.arange(1, len(parts))))
    known = [len(each) > 0 and not np.isnan(each).any() for each in found]
    whole = [each if there else np.array([np.nan]) for each, there in zip(found, known, strict=True)]
    return {
        "values": [each if there else None for each, there in zip(found, known, strict=True)],
        "least": np.array([each.min() for each in whole]),
        "mean": np.array([each.mean() for each in whole]),
        "last": np.array([each[-1] for each in whole]),
    }


def beginnings(text: str, separator: str) -> list[str]:
    """Return the text up to the end of each of its steps.

    >>> beginnings("a = 1;; b = 2", ";")
    ['a = 1', 'a = 1;; b = 2']
    """
    steps = text.split(separator)
    return [separator.join(steps[: number + 1]) for number, step in enumerate(steps) if step.strip()]
