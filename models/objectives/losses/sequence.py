"""The clipped surrogate on the ratio of a whole completion: GSPO."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows


@component("loss", paper="arXiv 2507.18071", needs=("now.logp", "old.logp", "advantage"), mean_over="row")
def gspo(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0)] = 3e-4,
    clip_high: Annotated[float, Ge(0.0)] = 4e-4,
) -> tuple[Tensor, Metrics]:
    """GSPO: L_i = -min(s_i A_i, b_i A_i), s_i = exp(mean_t (logp - logp_old)), b_i in [1 - low, 1 + high].

    Group Sequence Policy Optimization, arXiv 2507.18071, eq. 5 to 7: the likelihood ratio of the completion, normalised
    by its length, so that a completion is clipped whole. Every token of a row has the row's loss; the aggregation
    `sequence_mean` makes it the mean over completions. Metrics as of `clip`. Deviation: see MAX_LOG_RATIO.

    Args:
        clip_low: Ratio floor is 1 - clip_low (the paper's 3e-4).
        clip_high: Ratio ceiling is 1 + clip_high (the paper's 4e-4).
    """
    advantage, row = rows["advantage"], rows.row
    log_ratio = rows.row_mean(rows["now.logp"] - rows["old.logp"])
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded, given = ratio.clamp(1 - clip_low, 1 + clip_high), ratio.detach()
    # min(s A, b A) is A min(s, b), or A max(s, b) where A is below 0: a number a row in place of one a token.
    either = torch.cat([torch.minimum(ratio, bounded), torch.maximum(ratio, bounded)])
    negative, of_token = advantage < 0, given.index_select(0, row)
    return -either.index_select(0, row + rows.num_rows * negative) * advantage, {
        "clip_frac_low": ((given < 1 - clip_low).index_select(0, row) & negative).float(),
        "clip_frac_high": ((given > 1 + clip_high).index_select(0, row) & (advantage > 0)).float(),
        "ratio_mean": of_token,
        "ratio_max": of_token,
    }
