"""Draws that walk through the problems in an order."""

from typing import Annotated

import numpy as np
from annotated_types import Gt

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.results import Draw


@component("sampler", paper="arXiv 2506.02281", needs=("angles.concentration", "gain_rl.mu"))
def gain_rl(candidates: Rows, num: int, rng: np.random.Generator, *, sigma: Annotated[float, Gt(0.0)] = 1000.0) -> Draw:
    """Draw problems by a Gaussian over their ranks, the most concentrated first, without replacement (GAIN-RL).

    GAIN-RL (arXiv 2506.02281): P(rank) in proportion to exp(-((rank - mu) / sigma)^2 / 2), where the measure `angles`
    ranks and the tracker `gain_rl` keeps mu, 0 before the first round. Problems that were not measured come last.

    Args:
        sigma: Width of the Gaussian, ranks.
    """
    angle, mu = candidates["angles.concentration"], candidates["gain_rl.mu"]
    rank = np.empty(candidates.num_rows)
    rank[np.argsort(-np.nan_to_num(angle, nan=-np.inf), kind="stable")] = np.arange(candidates.num_rows)
    log_weight = -0.5 * ((rank - np.nan_to_num(mu)) / sigma) ** 2
    order = np.argsort(-(log_weight + rng.gumbel(size=len(rank))), kind="stable")[:num]  # Gumbel top-k
    return Draw(order, np.exp(log_weight[order]), np.isnan(angle[order]))
