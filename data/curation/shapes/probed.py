"""Shapes of rounds that begin with a probe."""

from collections.abc import Mapping
from typing import Any

from gradus.components import component
from gradus.data.curation.batch import BatchRows


@component("shape", paper="mail-research/SELF-llm-interference", needs=("temperature",))
def without_probe(rows: BatchRows) -> Mapping[str, Any]:
    """Leave greedy answers out, which say what to train on and are not trained on (SELF)."""
    return {"taken": rows["temperature"] > 0, "reason": "it is a greedy probe"}
