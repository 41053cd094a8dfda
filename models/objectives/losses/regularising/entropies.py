"""Terms that steer the policy's entropy: a band around its mean so far, and the policy at temperature 1."""

from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2509.22576",
    needs=("now.entropy",),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
    regulariser=True,
)
def entropy_band(
    rows: Rows,
    *,
    mean: Annotated[float, Ge(0.0)] = 0.0,
    low: Annotated[float, Ge(0.0)] = 0.8,
    high: Annotated[float, Ge(0.0)] = 1.2,
) -> tuple[Tensor, Metrics]:
    """Entropy smoothing: L_t = max(low m - H_t, 0) + max(H_t - high m, 0), m the mean entropy so far.

    EPO, arXiv 2509.22576: tokens whose entropy leaves a band around that of the steps before are drawn back into it.
    `mean` follows the schedule `history_mean` of policy/entropy; 0, before there is a history, is no band and no loss.
    Deviation: the distance to the band, where the paper has a constant, whose gradient is 0. Metrics: band_below_frac
    and band_above_frac, the tokens outside.

    Args:
        mean: Mean entropy of the rounds before, nats.
        low: Lower end of the band, in means.
        high: Upper end of the band, in means.
    """
    entropy = rows["now.entropy"]
    if mean == 0.0:
        outside = entropy.detach().new_zeros(entropy.shape)
        return 0.0 * entropy, {"band_below_frac": outside, "band_above_frac": outside}
    below, above = (low * mean - entropy).relu(), (entropy - high * mean).relu()
    return below + above, {
        "band_below_frac": (below.detach() > 0).float(),
        "band_above_frac": (above.detach() > 0).float(),
    }


@component("loss", paper="arXiv 2510.08141", needs=("now.logp_at_1", "advantage"), takes=("return",))
def reinforce_at_1(rows: Rows) -> tuple[Tensor, Metrics]:
    """REINFORCE of the policy at temperature 1 on rows of another one: L_t = -R_i log pi_t(T = 1).

    AEPO, arXiv 2510.08141: rows that were sampled at a temperature above 1 raise the policy's entropy through the
    reward, those of one below 1 lower it. R is the token's advantage: the advantage `reward`, 0 or 1.
    """
    return -rows["advantage"] * rows["now.logp_at_1"], {}


@component("loss", paper="DCPO", needs=("now.logp", "old.logp", "now.logp_at_1", "advantage"), takes=("return",))
def dcpo(rows: Rows) -> tuple[Tensor, Metrics]:
    """DCPO's second term: L_t = -sg(v_t) rho_t R_i, rho_t = pi_t / pi_old,t, v_t = pi_t(T = 1) / pi_t.

    The two ratios are those of the authors' README: rho at the row's own temperature, v to the policy at another one,
    so that rows weigh as if they were sampled at that. Deviations: that other temperature is 1 alone, so rows have to
    be sampled below it to raise the entropy, above it to lower it; v is the policy's now, not before the update. Log
    ratios are cut at MAX_LOG_RATIO. R is the token's advantage: the advantage `reward`. Metric: tempered_mean, of v.
    """
    now = rows["now.logp"]
    ratio = (now - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    tempered = (rows["now.logp_at_1"] - now).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return -tempered * ratio * rows["advantage"], {"tempered_mean": tempered}
