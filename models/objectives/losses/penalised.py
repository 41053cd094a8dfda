"""REINFORCE with a penalty, and a penalty beside another loss: OPMD, AsymRE, LLDS."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2501.12599",
    needs=("now.logp", "sampler.logp", "advantage"),
    acts_without_advantage=True,
)
def opmd(rows: Rows, *, tau: Annotated[float, Ge(0.0)] = 0.1) -> tuple[Tensor, Metrics]:
    """OPMD: L_t = -A_t log pi_t + tau / 2 S_i^2 / |o_i|, S_i the log ratio of the whole completion to its sampler.

    Online policy mirror descent of Kimi k1.5, arXiv 2501.12599, as in arXiv 2509.24203: summed over a completion
    (aggregation `sequence_sum` or `fixed_length`) it is -A_i log pi(o_i) + tau / 2 (log pi(o_i) / mu(o_i))^2, which
    holds whoever sampled the rows. Metric: log_ratio_mean, the mean of S.

    Args:
        tau: Strength of the penalty.
    """
    whole = rows.row_sum(rows["now.logp"] - rows["sampler.logp"])
    penalty = whole.square() / rows.row_tokens.clamp_min(1)
    loss = -rows["advantage"] * rows["now.logp"] + tau / 2 * penalty[rows.row]
    return loss, {"log_ratio_mean": whole.detach()[rows.row]}


@component(
    "loss",
    paper="arXiv 2506.20520",
    needs=("now.logp", "advantage"),
    acts_without_advantage=True,
    needs_sampler=False,
)
def asymre(rows: Rows, *, shift: Annotated[float, Ge(0.0)] = 0.1) -> tuple[Tensor, Metrics]:
    """AsymRE: L_t = -(A_t + shift) log pi_t, REINFORCE with a baseline that is lower than the mean by `shift`.

    Asymmetric REINFORCE, arXiv 2506.20520: off-policy, what succeeded counts more than what failed; the baseline is
    V = mean(r) - 0.1 there. By arXiv 2509.24203 it is a penalty shift KL(mu || pi). No ratio and no clip.

    Args:
        shift: Difference of the mean reward and the baseline; 0 is `reinforce`.
    """
    return -(rows["advantage"] + shift) * rows["now.logp"], {}


@component(
    "loss",
    paper="arXiv 2512.04220",
    needs=("now.logp", "old.logp", "advantage"),
    acts_without_advantage=True,
    regulariser=True,
)
def llds(rows: Rows) -> tuple[Tensor, Metrics]:
    """LLDS: L_t = max(0, log pi_old,t - log pi_t) in completions with A >= 0 that became less likely as a whole.

    On GRPO Collapse in Search-R1, arXiv 2512.04220: a term beside a policy loss, which charges the tokens that lost
    probability. The gate, sum_t (log pi_old - log pi) > 0, carries no gradient. As in the authors' code with its gate
    of responses and without that of final answers. Metric: displaced_frac, the tokens of such completions.
    """
    fall = rows["old.logp"] - rows["now.logp"]
    gate = (rows.row_sum(fall.detach()) > 0)[rows.row] & (rows["advantage"] >= 0)
    return torch.where(gate, fall.clamp_min(0.0), 0.0), {"displaced_frac": gate.float()}
