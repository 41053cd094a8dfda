"""Regularisers: losses that no weight multiplies, beside those of the reward."""

from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics, k3_divergence
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2402.03300",
    needs=("now.logp", "reference.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
    regulariser=True,
)
def k3(rows: Rows) -> tuple[Tensor, Metrics]:
    """Pull to the reference: L_t = exp(d) - d - 1, d = log pi_ref,t - log pi_t, an estimate of KL(policy || reference).

    Schulman, Approximating KL Divergence (2020); used by GRPO, arXiv 2402.03300, eq. 4. `update.kl_coef` is a short
    spelling of a term of it.
    """
    return k3_divergence(rows["now.logp"], rows["reference.logp"]), {}


@component("loss", needs=("now.entropy",), takes=(), acts_without_advantage=True, needs_sampler=False, regulariser=True)
def entropy(rows: Rows) -> tuple[Tensor, Metrics]:
    """Entropy bonus: L_t = -H_t. `update.entropy_coef` is a short spelling of a term of it."""
    return -rows["now.entropy"], {}
