"""Likelihood of curated rows, weighed by how likely they became: iw-SFT."""

from typing import Annotated

from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2507.12856",
    needs=("now.logp", "old.logp", "reference.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
)
def iw_sft(
    rows: Rows, *, low: Annotated[float, Ge(0.0)] = 0.5, high: Annotated[float, Gt(0.0)] = 2.0
) -> tuple[Tensor, Metrics]:
    """Importance-weighted SFT: L_t = -w log pi_t, w = clip(q(o) / pi_ref(o), low, high) of the whole completion.

    Supervised Fine Tuning on Curated Data is Reinforcement Learning, arXiv 2507.12856: a tighter bound on the reward of
    filtered data. q is the policy as the update began, the paper's lagged copy; w has no gradient. The bounds are ours.
    Metric: curated_weight_mean.

    Args:
        low: Least weight of a completion.
        high: Largest weight of a completion.
    """
    log = rows.row_sum(rows["old.logp"] - rows["reference.logp"]).detach()
    weight = log.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(low, high)[rows.row]
    return -weight * rows["now.logp"], {"curated_weight_mean": weight}
