"""Losses that hold tokens to the policy as it was when the update began."""

from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component("loss", paper="arXiv 2505.22617", needs=("now.logp", "old.logp"), takes=(), acts_without_advantage=True)
def abs_log_ratio(rows: Rows) -> tuple[Tensor, Metrics]:
    """Hold to the policy before the update: L_t = |log pi_t - log pi_old,t|.

    The penalty of KL-Cov (The Entropy Mechanism, arXiv 2505.22617, as in verl), of the tokens that its weight `kl_cov`
    chooses. No regulariser: weights multiply it. Metric: log_ratio_abs_mean.
    """
    distance = (rows["now.logp"] - rows["old.logp"]).abs()
    return distance, {"log_ratio_abs_mean": distance.detach()}
