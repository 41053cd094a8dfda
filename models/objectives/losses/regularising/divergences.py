"""Divergences between the policy and its reference, estimated on sampled tokens: value and gradient said apart."""

from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics, k3_divergence
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2510.01555",
    needs=("now.logp", "reference.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
    regulariser=True,
)
def kl(
    rows: Rows, *, value: Literal["k1", "k2", "k3"] = "k3", gradient: Literal["k1", "k2", "k3"] = "k2"
) -> tuple[Tensor, Metrics]:
    """Pull to the reference: L_t = g_t + sg(v_t - g_t), the number of one estimate of the KL, the gradient of another.

    With d = log pi_t - log pi_ref,t: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (Schulman, Approximating KL Divergence,
    2020). Numbers: k1 and k3 are unbiased for KL(policy || reference), k3 is never negative. Gradients on the policy's
    own samples: that of k2 is the gradient of KL(policy || reference), that of k3 the gradient of KL(reference ||
    policy), that of k1 is 0 in the mean and only adds noise. Rethinking KL Regularization in RLHF, arXiv 2510.01555; A
    Comedy of Estimators, arXiv 2512.21852. Deviation: k3 is cut at MAX_LOG_RATIO; k1 and k2 are not.

    Args:
        value: Estimate whose number is reported within the loss.
        gradient: Estimate whose gradient is taken.
    """
    loss = _estimate(rows, gradient)
    return (loss if value == gradient else loss + (_estimate(rows, value) - loss).detach()), {}


@component(
    "loss",
    paper="arXiv 2512.02556",
    needs=("now.logp", "old.logp", "reference.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
    regulariser=True,
)
def weighed_kl(rows: Rows, *, estimator: Literal["k1", "k3"] = "k3") -> tuple[Tensor, Metrics]:
    """Pull to the reference on samples of an older policy: L_t = rho_t k_t, rho_t = pi_t / pi_old,t with gradient.

    DeepSeek-V3.2, arXiv 2512.02556, section 3.1, for k3 (see `kl`). Number and gradient are those of KL(policy ||
    reference) in the mean, on samples of the policy itself, too: the gradient of rho k3 is rho d times that of log
    pi_t, that of rho k1 has rho (d + 1) and so more variance. Deviation: log rho and k3 are cut at MAX_LOG_RATIO.

    Args:
        estimator: Estimate that is weighed.
    """
    ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio * _estimate(rows, estimator), {}


@component(
    "loss",
    paper="RAPO",
    needs=("now.logp", "old.logp", "reference.logp", "reward"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
    regulariser=True,
)
def forward_kl(rows: Rows, *, eta: Annotated[float, Ge(0.0)] = 1.0) -> tuple[Tensor, Metrics]:
    """Forward KL to a reference reweighed by the reward: L_t = w_i u_t (log pi_ref,t - log pi_t), u = pi_ref / pi_old.

    RAPO: KL(p || pi) = E_old[p / pi_old log(p / pi)] with p proportional to pi_ref w(R): the policy covers what the
    reference does, the more where it was rewarded. eta = 0 is KL(reference || policy). A guess, since the abstract
    names the direction and the reweighing alone: the ratio is that of the token, and w_i = exp(eta R_i) is not
    normalised (its logarithm is no function of the policy). A reward that is unknown counts as 0. log u is cut at
    MAX_LOG_RATIO. Metric: cover_weight, the mean of w u.

    Args:
        eta: Nats by which a reward of 1 raises the reference's log-prob of a row.
    """
    ratio = (rows["reference.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    raised = (eta * rows["reward"].nan_to_num(0.0)).exp().to(ratio.dtype)[rows.row]
    weight = raised * ratio
    return weight * (rows["reference.logp"] - rows["now.logp"]), {"cover_weight": weight}


def _estimate(rows: Rows, name: Literal["k1", "k2", "k3"]) -> Tensor:
    """An estimate of KL(policy || reference) of each token, (M,)."""
    if name == "k3":
        return k3_divergence(rows["now.logp"], rows["reference.logp"])
    difference = rows["now.logp"] - rows["reference.logp"]
    return difference if name == "k1" else 0.5 * difference.square()
