"""Weights from the entropy of a token and the advantage at it together: D3S, entropy-shaped advantages."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component("weight", paper="arXiv 2509.22115", needs=("now.entropy", "advantage"))
def d3s(rows: Rows, *, frac: Annotated[float, Gt(0.0), Le(1.0)] = 0.2) -> tuple[Tensor, Metrics]:
    """D3S: weigh the tokens of largest |A_t| H_t 1 and all others 0: 1[|A_t| H_t >= tau], tau the (1 - frac) quantile.

    D3S, arXiv 2509.22115, section 3.2. The quantile (linear interpolation) is that of all counted tokens of the step.
    Metrics: d3s_frac, the tokens kept; d3s_threshold_max, the threshold in nats times the advantage's unit.

    Args:
        frac: Share of the tokens that is kept.
    """
    key = (rows["advantage"].double().abs() * rows["now.entropy"].double()).nan_to_num(0.0)
    counted = key[rows.mask]
    threshold = torch.quantile(counted, 1 - frac) if len(counted) else torch.zeros((), dtype=torch.float64)
    kept = (key >= threshold).float()
    return kept, {"d3s_frac": kept, "d3s_threshold_max": torch.full_like(kept, float(threshold))}


@component("weight", paper="arXiv 2506.14758", needs=("now.entropy", "advantage"))
def entropy_shaped(
    rows: Rows, *, alpha: Annotated[float, Ge(0.0)] = 0.4, kappa: Annotated[float, Gt(1.0)] = 2.0
) -> tuple[Tensor, Metrics]:
    """Add entropy to the advantage: w_t = (A_t + psi_t) / A_t, psi_t = min(alpha H_t, |A_t| / kappa), 1 where A_t = 0.

    Reasoning with Exploration: An Entropy Perspective, arXiv 2506.14758, eq. 5 and 6: no gradient of H, and no sign
    turns. Metric: entropy_share_mean, the mean of psi / |A|.

    Args:
        alpha: Weight of the entropy, per nat.
        kappa: |A| / kappa is the largest addition.
    """
    advantage = rows["advantage"].double()
    size = advantage.abs().clamp_min(torch.finfo(torch.float64).tiny)
    share = (alpha * rows["now.entropy"].double() / size).clamp_max(1 / kappa)
    share = torch.where(advantage != 0, share, 0.0)
    return (1 + advantage.sign() * share).float(), {"entropy_share_mean": share.float()}
