"""Surrogates of token ratios beside the clip: bounded (dual clip), gated (SAPO), of logarithms (CPGD), standardised."""

import math
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics
from gradus.models.objectives.losses.clipped import surrogate
from gradus.models.objectives.rows import Rows


@component("loss", paper="arXiv 1912.09729", needs=("now.logp", "old.logp", "advantage"))
def dual_clip(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.28,
    floor: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0,
    cap: Annotated[float, Gt(1.0)] = 3.0,
) -> tuple[Tensor, Metrics]:
    """Clipped surrogate (see `clip`) of a bounded ratio: r_t = clamp(rho_t, floor, cap) in the place of rho_t.

    Dual-clip PPO, arXiv 1912.09729: with A < 0 the surrogate is at least cap A, so that a token whose ratio exploded
    has no gradient; max(min(rho A, clip(rho) A), cap A) is the same as bounding rho. So are the cap of MM-Eureka (arXiv
    2503.07365: cap = 3) and the Pre-CLIP of StableReinforce (arXiv 2505.02835: floor = 1e-3, cap = 1e3), both by their
    released losses. Metrics of `clip`, and bounded_frac: tokens that lose their gradient to floor or cap.
    Deviation: see MAX_LOG_RATIO.

    Args:
        clip_low: Ratio floor of the clip is 1 - clip_low.
        clip_high: Ratio ceiling of the clip is 1 + clip_high, which should be less than `cap`.
        floor: Least ratio, beyond which a token of A > 0 has no gradient.
        cap: Largest ratio, beyond which a token of A < 0 has no gradient.
    """
    advantage = rows["advantage"]
    ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss, metrics = surrogate(ratio.clamp(floor, cap), advantage, 1 - clip_low, 1 + clip_high)
    given = ratio.detach()
    bounded = ((given > cap) & (advantage < 0)) | ((given < floor) & (advantage > 0))
    return loss, {**metrics, "ratio_mean": given, "ratio_max": given, "bounded_frac": bounded.float()}


@component("loss", paper="arXiv 2511.20347", needs=("now.logp", "old.logp", "advantage"))
def sapo(
    rows: Rows, *, tau_positive: Annotated[float, Gt(0.0)] = 1.0, tau_negative: Annotated[float, Gt(0.0)] = 1.05
) -> tuple[Tensor, Metrics]:
    """SAPO: L_t = -f(rho_t) A_t, f(x) = 4 / tau sigmoid(tau (x - 1)), rho_t = exp(logp - logp_old).

    Soft Adaptive Policy Optimization, arXiv 2511.20347: a gate in the place of the clip, whose gradient
    4 sigma (1 - sigma) rho A is that of REINFORCE at rho = 1 and fades with the distance. tau is tau_positive for
    A > 0, else tau_negative. Metrics: gate_mean, the mean of 4 sigma (1 - sigma), and ratio_max.
    Deviation: see MAX_LOG_RATIO.

    Args:
        tau_positive: Temperature of the gate for A > 0.
        tau_negative: Temperature of the gate for A <= 0; a higher one fades faster.
    """
    advantage = rows["advantage"]
    ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    tau = torch.where(advantage > 0, advantage.new_tensor(tau_positive), tau_negative)
    gate = torch.sigmoid(tau * (ratio - 1))
    given = gate.detach()
    return -4 / tau * gate * advantage, {"gate_mean": 4 * given * (1 - given), "ratio_max": ratio.detach()}


@component("loss", paper="arXiv 2505.12504", needs=("now.logp", "old.logp", "advantage"))
def cpgd(
    rows: Rows,
    *,
    clip_low: Annotated[float, Ge(0.0), Lt(1.0)] = 0.2,
    clip_high: Annotated[float, Ge(0.0)] = 0.2,
) -> tuple[Tensor, Metrics]:
    """CPGD: L_t = -min(l_t A_t, clamp(l_t, log(1 - low), log(1 + high)) A_t), l_t = logp - logp_old.

    Clipped Policy Gradient Optimization, arXiv 2505.12504: the gradient is that of REINFORCE inside the clip, never
    multiplied by a ratio, which explodes for A < 0. Its policy drift, the KL of old and new policy, is a term of its
    own: the loss `dph`. Metrics: clip_frac_low, clip_frac_high and ratio_max, as of `clip`.

    Args:
        clip_low: Ratio floor is 1 - clip_low.
        clip_high: Ratio ceiling is 1 + clip_high.
    """
    advantage = rows["advantage"]
    log_ratio = rows["now.logp"] - rows["old.logp"]
    low, high = math.log(1 - clip_low), math.log(1 + clip_high)
    given = log_ratio.detach()
    return -torch.minimum(log_ratio * advantage, log_ratio.clamp(low, high) * advantage), {
        "clip_frac_low": ((given < low) & (advantage < 0)).float(),
        "clip_frac_high": ((given > high) & (advantage > 0)).float(),
        "ratio_max": given.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(),
    }


@component("loss", paper="arXiv 2510.22319", needs=("now.logp", "old.logp", "advantage"))
def standardised(
    rows: Rows, *, clip_std: Annotated[float, Gt(0.0)] = 2.0, std_eps: Annotated[float, Gt(0.0)] = 1e-2
) -> tuple[Tensor, Metrics]:
    """GRPO-Guard: L_t = -s_i min(r_t A_t, clamp(r_t, e^-c, e^c) A_t), r_t = exp((l_t - m_i) / s_i), l_t the log ratio.

    GRPO-Guard, arXiv 2510.22319, centres and scales the log ratios of each denoising step of an image model, so that
    they meet the clip on both sides alike, and equalises the gradients of the steps. Here m_i and s_i are mean and std
    (ddof 0) of a completion's log ratios, without gradient, s_i at least std_eps; the factor s_i makes the gradient of
    a token -r_t A_t, whatever the scale. Both are guesses. Metrics: clip_frac_low, clip_frac_high, as of `clip`, and
    ratio_std_mean, the mean of s.

    Args:
        clip_std: c, the bounds of the standardised log ratio in standard deviations.
        std_eps: Least standard deviation to divide by, nats.
    """
    advantage = rows["advantage"]
    log_ratio = (rows["now.logp"] - rows["old.logp"]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    given = log_ratio.detach()
    mean = rows.of_token(rows.row_mean(given))
    scale = rows.of_token(rows.row_mean((given - mean).square()).sqrt().clamp_min(std_eps))
    # Of n tokens one may lie sqrt(n - 1) standard deviations off.
    units = ((log_ratio - mean) / scale).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    bounded = units.clamp(-clip_std, clip_std)
    loss = -scale * torch.minimum(units.exp() * advantage, bounded.exp() * advantage)
    return loss, {
        "clip_frac_low": ((units.detach() < -clip_std) & (advantage < 0)).float(),
        "clip_frac_high": ((units.detach() > clip_std) & (advantage > 0)).float(),
        "ratio_std_mean": scale,
    }
