"""Losses that read the policy's logits as values: TBRM."""

from typing import Annotated

from annotated_types import Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2505.15311",
    needs=("now.logp", "now.logsumexp", "reference.logp", "advantage"),
    takes=("return",),
    mean_over="row",
    acts_without_advantage=True,
    needs_sampler=False,
)
def tbrm(rows: Rows, *, beta: Annotated[float, Gt(0.0)] = 0.002) -> tuple[Tensor, Metrics]:
    """Trajectory Bellman residual: L = (V(s_1) + sum_t [log pi_t - log pi_ref,t] - R / beta)^2, V = logsumexp(logits).

    Trajectory Bellman Residual Minimization, arXiv 2505.15311. Every token carries the residual of its row, so the
    aggregation is `sequence_mean`, and R is the token's advantage: the advantage `reward`. Metric: bellman_residual.

    Args:
        beta: Strength of the KL regularisation that the Bellman equation is of.
    """
    sums = rows.row_sum(rows["now.logp"] - rows["reference.logp"])
    filled = (rows.lengths > 0).nonzero()[:, 0]
    first = (rows.lengths.cumsum(0) - rows.lengths)[filled]
    at_first = rows["now.logsumexp"].index_select(0, first) - rows["advantage"].index_select(0, first) / beta
    residual = sums.index_add(0, filled, at_first).index_select(0, rows.row)
    return residual.square(), {"bellman_residual": residual.detach()}
