"""Thompson sampling of problems by what is known of their pass rates."""

import numpy as np

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.results import Draw


@component("sampler", needs=("beta_posterior.alpha", "beta_posterior.beta"))
def thompson(candidates: Rows, num: int, rng: np.random.Generator) -> Draw:
    """Draw a pass rate p of each problem from its posterior and take the problems of the largest p (1 - p) (VADE).

    VADE takes the problems of the largest expected information gain, p drawn from Beta(alpha, beta); the tracker
    `beta_posterior` keeps both. A problem of which nothing is known has Beta(1, 1). Weights are 4 p (1 - p).
    Deviation: p (1 - p) stands for the gain, whose form is not in the abstract.
    """
    alpha, beta = candidates["beta_posterior.alpha"], candidates["beta_posterior.beta"]
    unknown = np.isnan(alpha)
    rate = rng.beta(np.where(unknown, 1.0, alpha), np.where(unknown, 1.0, beta))
    gain = 4 * rate * (1 - rate)
    index = np.argsort(-gain, kind="stable")[:num]
    return Draw(index, gain[index], unknown[index])
