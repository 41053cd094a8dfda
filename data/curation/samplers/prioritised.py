"""Draws in proportion to how uncertain the outcome of a problem is."""

from typing import Annotated

import numpy as np
from annotated_types import Gt

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.results import Draw


@component("sampler", paper="arXiv 2509.13232", needs=("spo.value",))
def spo(candidates: Rows, num: int, rng: np.random.Generator, *, epsilon: Annotated[float, Gt(0.0)] = 0.05) -> Draw:
    """Draw problems in proportion to sqrt(v (1 - v)) + epsilon, without replacement (SPO's prioritised sampling).

    SPO (arXiv 2509.13232); v is the expected reward that the tracker `spo` keeps, one half where nothing is known.

    Args:
        epsilon: Weight of a problem whose outcome is certain.
    """
    value = candidates["spo.value"]
    unknown = np.isnan(value)
    value = np.clip(np.where(unknown, 0.5, value), 0.0, 1.0)
    weight = np.sqrt(value * (1 - value)) + epsilon
    index = np.argsort(rng.standard_exponential(len(weight)) / weight, kind="stable")[:num]  # Efraimidis and Spirakis
    return Draw(index, weight[index], unknown[index])
