"""Advantages that couple the completions of a group through the policy as it is now: DisCO."""

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO
from gradus.models.objectives.rows import Rows


@component(
    "advantage",
    paper="arXiv 2505.12366",
    needs=("reward", "group", "now.logp", "old.logp"),
    per="token",
    when="step",
    returns=("coefficient",),
    mean_over="row",
    compares_group=True,
)
def disco(
    rows: Rows,
    *,
    score: Literal["log_likelihood", "ratio"] = "log_likelihood",
    tau: Annotated[float, Gt(0.0)] = 10.0,
    max_kl: Annotated[float, Ge(0.0)] = 1e-4,
    kl_penalty: Annotated[float, Ge(0.0)] = 1000.0,
) -> Tensor:
    """DisCO: coefficients of log pi in the gradient of a discriminative objective, one a token, (M,).

    J = (1 / Q) sum_q [mean_pos s_i - tau log mean_neg exp(s_j / tau)] - (kl_penalty / 2) max(KL - max_kl, 0)^2, over
    groups q with right and wrong answers, Q the number of all groups of the step,
    s_i = mean_t log pi_t (log_likelihood) or mean_t pi_t / pi_old,t (ratio), KL = mean_t (log pi_old,t - log pi_t) over
    all tokens of the step. DisCO, arXiv 2505.12366, eq. 8 to 10.
    Returned is A with grad J = (1 / N) sum_i (1 / |o_i|) sum_t A_t grad log pi_t, so that the loss `reinforce` with the
    aggregation `sequence_mean` takes the step. A row is positive if its reward is above 0.5.

    Args:
        score: Score that separates right from wrong.
        tau: Temperature of the soft maximum over wrong answers.
        max_kl: Bound on KL(old || policy), nats a token, below which the penalty is 0.
        kl_penalty: Weight of the squared excess of the bound.
    """
    logp, old = rows["now.logp"].double(), rows["old.logp"].double()
    ratio = (logp - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    slope = torch.ones_like(ratio) if score == "log_likelihood" else ratio
    row = _row_coefficients(rows, rows.row_mean(logp if score == "log_likelihood" else ratio), tau)
    counts = rows.row_tokens.double()
    num_rows, num_tokens = float((counts > 0).sum()), float(counts.sum())
    kl = float((old - logp)[rows.mask].mean())
    pull = kl_penalty * max(kl - max_kl, 0.0) * num_rows * counts[rows.row] / num_tokens
    return num_rows * row[rows.row] * slope + pull


def _row_coefficients(rows: Rows, scores: Tensor, tau: float) -> Tensor:
    """Return dJ / ds_i without the penalty, (N,)."""
    groups, positive = rows.by("group"), (rows["reward"] > 0.5).double()
    num_positive, num_negative = groups.sum(positive), groups.sum(1 - positive)
    wrong = torch.where(positive > 0, -torch.inf, scores)
    mass = ((wrong - groups.max(wrong)) / tau).exp().nan_to_num()  # -inf - -inf where no answer is wrong
    share = mass / groups.sum(mass).clamp_min(torch.finfo(torch.float64).tiny)
    coefficient = positive / num_positive.clamp_min(1) - share
    return torch.where((num_positive > 0) & (num_negative > 0), coefficient, 0.0) / max(1, groups.num)
