"""Shapes of rounds that begin with a probe."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradus.components import component
from gradus.data.curation.batch import BatchRows


@component("shape", paper="mail-research/SELF-llm-interference", needs=("temperature",))
def without_probe(rows: BatchRows) -> Mapping[str, Any]:
    """Leave greedy answers out, which say what to train on and are not trained on (SELF)."""
    return {"taken": rows["temperature"] > 0, "reason": "it is a greedy probe"}


@component("shape", paper="arXiv 2506.05316", needs=("wave",))
def without_first(rows: BatchRows) -> Mapping[str, Any]:
    """Leave out the round's first plan, which says what else to sample and is not trained on (DOTS)."""
    return {"taken": np.nan_to_num(rows["wave"]) > 0, "reason": "it is of the reference set"}
