"""The clipped surrogate on the ratio of a completion or of its sentences: GSPO and its token form, GMPO, SSPO."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.losses.clipped import beyond, surrogate
from gradus.models.objectives.ragged import offsets
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
    log_ratio = rows.row_mean(rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return surrogate(rows.of_token(log_ratio.exp()), rows["advantage"], 1 - clip_low, 1 + clip_high)


@component("loss", paper="arXiv 2507.18071", needs=("now.logp", "old.logp", "advantage"))
def gspo_token(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0)] = 3e-4,
    clip_high: Annotated[float, Ge(0.0)] = 4e-4,
) -> tuple[Tensor, Metrics]:
    """GSPO-token: L_t = -min(s_t A_t, b_t A_t), s_t = sg(s_i) pi_t / sg(pi_t), s_i the ratio of `gspo`.

    Group Sequence Policy Optimization, arXiv 2507.18071, section 4.3: the value of the completion's ratio with the
    gradient of the token's own log-prob, so that tokens may differ in advantage and in weight. With one advantage a
    completion its gradient under `sequence_mean` is that of `gspo`. Metrics as of `clip`. Deviation: see MAX_LOG_RATIO.

    Args:
        clip_low: Ratio floor is 1 - clip_low (the paper's 3e-4).
        clip_high: Ratio ceiling is 1 + clip_high (the paper's 4e-4).
    """
    now = rows["now.logp"]
    log_ratio = rows.row_mean((now - rows["old.logp"]).detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = (rows.of_token(log_ratio) + now - now.detach()).exp()
    return surrogate(ratio, rows["advantage"], 1 - clip_low, 1 + clip_high)


@component("loss", paper="arXiv 2507.20673", needs=("now.logp", "old.logp", "advantage"), mean_over="row")
def gmpo(
    rows: Rows,
    *,
    log_low: Annotated[float, Ge(0.0)] = 0.4,
    log_high: Annotated[float, Ge(0.0)] = 0.4,
) -> tuple[Tensor, Metrics]:
    """GMPO: L_t = -A_t exp(mean_t m_t), m_t = sgn(A) min(sgn(A) l_t, sgn(A) clamp(l_t, -low, high)), l = log ratio.

    Geometric-Mean Policy Optimization, arXiv 2507.20673: tokens are clipped first, on the side that `clip` does,
    then their geometric mean is the ratio of the completion, over its counted tokens. Metrics as of `clip`.
    Deviation: see MAX_LOG_RATIO.

    Args:
        log_low: Ratio floor of a token is exp(-log_low).
        log_high: Ratio ceiling of a token is exp(log_high).
    """
    advantage = rows["advantage"]
    log_ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    given = log_ratio.detach()
    under, over = beyond(given, advantage, -log_low, log_high)
    bounded = torch.where(advantage > 0, given.clamp(max=log_high), given.clamp(min=-log_low))
    bounded = bounded + (bounded == given) * (log_ratio - given)  # a clipped token has no gradient
    ratio = rows.of_token(rows.row_mean(bounded).exp())
    return -ratio * advantage, {
        "clip_frac_low": under,
        "clip_frac_high": over,
        "ratio_mean": ratio.detach(),
        "ratio_max": given.exp(),
    }


@component(
    "loss", paper="arXiv 2511.04256", needs=("now.logp", "old.logp", "now.entropy", "advantage", "marks.sentence")
)
def sspo(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0)] = 0.04,
    clip_high: Annotated[float, Ge(0.0)] = 0.05,
    spread: Annotated[float, Ge(1.0)] = 2.0,
) -> tuple[Tensor, Metrics]:
    """SSPO: L_t = -min(s_k A_t, clamp(s_k, 1 - low_k, 1 + high_k) A_t), s_k of the sentence.

    Subsentence-level Policy Optimization, arXiv 2511.04256: s_k = exp(mean of the log ratios of sentence k), so that an
    outlier clips its own sentence alone. The bounds grow with the sentence's mean entropy H_k: low_k = low f_k,
    f_k = clamp(H_k / mean of H over the completion, 1 / spread, spread), a guess like the bounds themselves. Sentences
    are the marks `sentence` (the shape `sentences`); tokens between two marks are a sentence of their own.
    Metrics as of `clip`. Deviation: see MAX_LOG_RATIO.

    Args:
        clip_low: Ratio floor is 1 - clip_low for a sentence of mean entropy.
        clip_high: Ratio ceiling is 1 + clip_high for a sentence of mean entropy.
        spread: Factor by which entropy widens or narrows the bounds at most; 1 leaves them as they are.
    """
    parts, entropy = _parts(rows), rows["now.entropy"].detach()
    mean = rows.of_token(rows.row_mean(entropy))
    factor = torch.where(mean > 0, parts.of_token(parts.row_mean(entropy)) / mean, 1.0).clamp(1 / spread, spread)
    log_ratio = parts.row_mean(rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = parts.of_token(log_ratio.exp())
    return surrogate(ratio, rows["advantage"], 1 - clip_low * factor, 1 + clip_high * factor)


def _parts(rows: Rows) -> Rows:
    """Return the tokens as rows of their own for each marked sentence; another begins behind the end of a mark."""
    marks, at = rows.marks("sentence"), offsets(rows.lengths)
    begins = torch.cat([at, at[marks.row] + marks.start.clamp_min(0), at[marks.row] + marks.end.clamp_min(0)])
    return Rows({}, lengths=begins.unique().diff(), mask=rows.mask)
