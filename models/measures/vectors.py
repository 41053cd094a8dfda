"""Vectors of problems, by which their texts are compared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradus.components import component
from gradus.components.rows import Floats, Rows
from gradus.models.measuring import Model


@component("measure", by=("problem_id",), columns=("vector",), needs=("question", "messages"))
def embedding(rows: Rows, model: Model, *, layer: int = -1) -> Mapping[str, Any]:
    """Return the mean hidden state of each problem's prompt, as a list of D numbers; none if it does not fit the model.

    Args:
        layer: 0 are the embeddings, -1 is what the last layer makes, after the final norm.
    """
    found = model.hidden(model.prompts(rows["question"], rows["messages"]), _mean, layer)
    return {"vector": [None if np.isnan(each).any() else each for each in found]}


def _mean(states: Floats) -> Floats:
    return states.mean(0)
