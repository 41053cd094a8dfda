"""Scores of texts by a reward model."""

from collections.abc import Mapping
from typing import Any

from gradus.components import component
from gradus.components.rows import Rows
from gradus.models.measuring import Model


@component(
    "measure",
    by=("rollout_id",),
    columns=("value",),
    needs=("completion", "problem.question", "problem.messages"),
    needs_head=True,
)
def reward_model(rows: Rows, model: Model) -> Mapping[str, Any]:
    """Return the number that a reward model has for each problem with its completion, as its own tokens.

    NaN for a completion that does not fit the model's positions with its problem.
    """
    questions, messages = rows["problem.question"], rows["problem.messages"]
    return {"value": model.values(model.answered(questions, rows["completion"], messages))}
