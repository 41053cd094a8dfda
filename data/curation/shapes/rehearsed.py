"""Shapes of rounds that rehearse answers of an earlier policy."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradus.components import component
from gradus.data.curation.batch import BatchRows


@component("shape", paper="arXiv 2509.07430", needs=("recall",))
def rehearsed(rows: BatchRows) -> Mapping[str, Any]:
    """Put rows that were taken up again into the term `rehearsal`, all others into the term `policy` (DPH-RL)."""
    return {"term": np.where([each is None for each in rows["recall"]], "policy", "rehearsal")}
