"""A draw by what the response surface expects of a group."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Floats, Ints
from gradus.data.curation.results import Draw
from gradus.data.curation.surface.forecast import fitted_prior, no_variance
from gradus.data.curation.surface.model import Predicted

_LEAST = 1e-12
"""Weight of a problem whose groups are certain to be all right or all wrong."""


@component(
    "sampler",
    libraries=("scipy",),
    needs=("surface.logit", "surface.logit_var", "surface.tokens", "n", "k"),
)
def surface(
    candidates: Rows,
    num: int,
    rng: np.random.Generator,
    *,
    n: Annotated[int, Ge(2)] = 8,
    power: Annotated[float, Gt(0.0)] = 1.0,
) -> Draw:
    """Draw problems by the chance that a group has right and wrong answers, for each token that it is expected to cost.

    Without replacement, in proportion to (E[1 - p^n - (1 - p)^n] / tokens)^power: p without a hint, as the tracker
    `surface` expects it of the newest policy, normal in the logit. Before the tracker knows a problem p has the Beta
    posterior of its measured n and k, whose prior is that under which those of all problems are likeliest. Tokens are
    the mean of a completion of the problem so far, or of all of them. Weights are those of the draw, tokens in units
    of their mean; a problem that the tracker does not know is explored.

    Args:
        n: Completions of a group.
        power: Above 1 the best problems are drawn more often, and the others seldom.
    """
    logit = candidates["surface.logit"]
    unknown = np.isnan(logit)
    known = Predicted(logit, np.sqrt(candidates["surface.logit_var"]))
    signal = np.where(
        unknown, _by_counts(candidates["n"], candidates["k"], n) if unknown.any() else 0.0, known.signal(n)
    )
    weight = np.maximum((signal / _relative(candidates["surface.tokens"])) ** power, _LEAST)
    index = np.argsort(rng.standard_exponential(len(weight)) / weight, kind="stable")[:num]  # Efraimidis and Spirakis
    return Draw(index, weight[index], unknown[index])


def _by_counts(num: Ints, right: Ints, n: int) -> Floats:
    """Return the chance that a group has right and wrong answers by the counts of its problem (N,)."""
    return 1 - no_variance(num, right, np.full(len(num), n), fitted_prior(num, right))


def _relative(tokens: Floats) -> Floats:
    """Return tokens in units of the mean of those known (N,), 1 where they are not."""
    there = ~np.isnan(tokens)
    return np.where(there, tokens / (tokens[there].mean() if there.any() else 1.0), 1.0)
