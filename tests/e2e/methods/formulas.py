"""Formulas of the papers in plain NumPy and torch: advantages, losses, means over tokens; see `Step` for the names."""

import itertools
from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np
import torch
from scipy.stats import beta as beta_distribution
from torch import Tensor

from tests.e2e.methods.step import AtStep, Step

Loss = Callable[[Step, Tensor], Tensor]
"""(M,) of the advantage of each token, (M,)."""
MAX_TOKENS = 40
"""`curate.sample.max_tokens` of the runs."""


# Advantages: (N,) or (M,)


def by_group(each: Callable[[Any], Any], *, of_equal: bool = False) -> AtStep:
    """Of the rewards of each group; 0 in a group of equal ones unless `of_equal`."""
    return lambda s: torch.where(s.varied | torch.tensor(of_equal), s.by_group(each).nan_to_num(0.0, 0.0, 0.0), 0.0)


def deviation(values: Any) -> Any:
    return values - values.mean()


def z(values: Any) -> Any:
    return deviation(values) / (values.std(ddof=1) + 1e-4) if np.ptp(values) > 0 else 0 * values


grpo, dr_grpo = by_group(z), by_group(deviation)
rloo = by_group(lambda r: [r[i] - np.delete(r, i).mean() for i in range(len(r))] if len(r) > 1 else 0 * r)
maxrl = by_group(lambda r: deviation(r) / max(r.mean(), 1e-9))
ngrpo = by_group(
    lambda r: (r - np.append(r, 1).mean()) / (np.append(r, 1).std(ddof=1) + 1e-6) if min(r) < 1 else 0 * r,
    of_equal=True,
)
univg_r1 = by_group(lambda r: np.exp(1 - r.mean()) * z(r))


def own_reward(s: Step) -> Tensor:
    return s.reward


def over_batch(each: Callable[[Any], Any], scale: Callable[[Any, Any], Any]) -> AtStep:
    """Of each group, then divided by a std of the batch; `scale` has the values and all rewards."""

    def found(step: Step) -> Tensor:
        values = step.by_group(each).numpy()
        return torch.from_numpy(scale(values, step.reward.numpy()))

    return found


reinforce_plus_plus = over_batch(lambda r: r, lambda v, _: (v - v.mean()) / v.std(ddof=1))
reinforce_plus_plus_baseline = over_batch(deviation, lambda v, _: (v - v.mean()) / v.std(ddof=1))
lite_ppo = over_batch(deviation, lambda v, r: v / r.std(ddof=1))


def opo(step: Step) -> Tensor:
    length = step.length.double()
    weighed = step.by_group(np.sum, length * step.reward) / step.by_group(np.sum, length)
    return torch.where(step.varied, step.reward - weighed, 0.0)


def bnpo(step: Step) -> Tensor:
    p = step.by_group(np.mean)
    means = np.array([float(p[step.group == g][0]) for g in step.group.unique()])
    m, v = means.mean(), means.var(ddof=1)
    spread = (m * (1 - m) / v - 1) / 3
    density = beta_distribution.pdf(p.numpy(), max(1, 1 + spread * m), max(1, 1 + spread * (1 - m)))
    return torch.where(step.varied, (step.reward - p) / torch.from_numpy(np.maximum(density, 1e-6)), 0.0)


def dgpo(step: Step) -> Tensor:
    mad = step.by_group(lambda r: deviation(r) / np.abs(deviation(r)).mean() if np.ptp(r) else 0 * r)
    valid = [g for g in step.group.unique() if bool(step.varied[step.group == g][0])]
    accuracy = np.array([float(step.correct[step.group == g].mean()) or 1.0 for g in valid])
    share = np.exp(-accuracy / 2) / np.exp(-accuracy / 2).sum() * len(valid)
    weight = torch.zeros_like(mad)
    for g, w in zip(valid, share, strict=True):
        weight[step.group == g] = w
    return weight * mad


def pass_at_k(step: Step, k: int = 4) -> Tensor:
    """By all sets of k rows, one by one, of the binomial coefficients of the paper."""

    def each(r: Any) -> Any:
        n, wrong = len(r), int((r <= 0).sum())
        m = 1 - comb(wrong, k) / comb(n, k)
        if m in (0.0, 1.0):
            return 0 * r
        sets = list(itertools.combinations(range(n), k))
        best = [max(r[list(one)]) for one in sets]
        of_row = [np.mean([b - m for one, b in zip(sets, best, strict=True) if i in one]) for i in range(n)]
        return np.array(of_row) / np.sqrt(m * (1 - m))

    return step.by_group(each, step.correct)


def unlikeliness(step: Step) -> Tensor:
    likely = step.mean(step.sampler)
    rank = step.by_group(lambda values: [(values < one).sum() / len(values) for one in values], likely)
    scaled = torch.where(step.reward > 0, step.reward * (1 - 0.25 * rank), step.reward)
    return torch.where(step.varied, step.by_group(z, scaled), 0.0)


def hapo(step: Step) -> Tensor:
    """Mean and std over the tokens of the group, each with its row's reward."""
    length, found = step.length.numpy(), torch.zeros_like(step.reward)
    for g in step.group.unique():
        at = step.group == g
        spread = np.repeat(step.reward[at].numpy(), length[at.numpy()])
        found[at] = (step.reward[at] - spread.mean()) / (spread.std() + 1e-6)
        if float(found[at].abs().max()) >= 5:
            found[at] = torch.as_tensor(z(step.reward[at].numpy()))
    return torch.where(step.varied, found, 0.0)


def prefixes(step: Step, row: int) -> list[tuple[int, ...]]:
    text = step.rollouts[row]["completion_tokens"]
    return [tuple(text[:place]) for place in range(len(text) + 1)]


def tempo(step: Step) -> Tensor:
    """The value of a prefix by a table of all prefixes of the group's answers."""
    found = list[float]()
    for row in range(len(step.group)):
        members = [i for i in range(len(step.group)) if step.group[i] == step.group[row]]
        begun = {i: prefixes(step, i) for i in members}
        rewards = step.reward[members]
        if float(rewards.max()) == float(rewards.min()):
            found += [0.0] * int(step.length[row])
            continue
        values = [
            float(np.mean([float(step.reward[i]) for i in members if text in begun[i][len(text) : len(text) + 1]]))
            for text in begun[row]
        ]
        own = float(step.reward[row] - rewards.mean())
        found += [(own + after - before) / float(rewards.std()) for before, after in itertools.pairwise(values)]
    return torch.tensor(found, dtype=torch.float64)


def gae(lam: float) -> AtStep:
    """The first update has a critic of zeros: A_t = lam^(T - t) r, whitened over the tokens."""

    def found(step: Step) -> Tensor:
        place = torch.cat([torch.arange(n).flip(0) for n in step.length.tolist()])
        plain = step.reward[step.row] * lam**place
        return (plain - plain.mean()) / plain.std()

    return found


# Losses of tokens


def clip(low: float, high: float) -> Loss:
    return lambda s, a: -torch.minimum(s.ratio * a, s.ratio.clamp(1 - low, 1 + high) * a)


def behaviour_clip(s: Step, a: Tensor) -> Tensor:
    ratio = (s.now - s.sampler).exp()
    return -torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)


def reinforce(s: Step, a: Tensor) -> Tensor:
    return -a * s.now


def weighed(weight: Callable[[Step, Tensor], Tensor]) -> Loss:
    """REINFORCE times a weight without gradient."""
    return lambda s, a: -weight(s, a).detach() * a * s.now


def to_sampler(s: Step) -> Tensor:
    return (s.now - s.sampler).detach().exp()


def whole(s: Step) -> Tensor:
    """The log ratio of each completion to its sampler, at its tokens."""
    return s.sum((s.now - s.sampler).detach())[s.row]


def gspo(low: float, high: float) -> Loss:
    def loss(s: Step, a: Tensor) -> Tensor:
        ratio = s.mean(s.now - s.old).exp()[s.row]
        return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)

    return loss


def gspo_token(low: float, high: float) -> Loss:
    def loss(s: Step, a: Tensor) -> Tensor:
        ratio = s.mean(s.now - s.old).exp().detach()[s.row] * (s.now - s.now.detach()).exp()
        return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)

    return loss


def gmpo(s: Step, a: Tensor) -> Tensor:
    log, sign = s.now - s.old, a.sign()
    least = sign * torch.minimum(sign * log, sign * log.clamp(-0.4, 0.4))
    return -a * s.mean(least).exp()[s.row]


def sapo(s: Step, a: Tensor) -> Tensor:
    tau = torch.where(a > 0, 1.0, 1.05)
    return -4 / tau * torch.sigmoid(tau * (s.ratio - 1)) * a


def cpgd(s: Step, a: Tensor) -> Tensor:
    log = s.now - s.old
    return -torch.minimum(log * a, log.clamp(np.log(0.8), np.log(1.2)) * a)


def dual_clip(floor: float, cap: float) -> Loss:
    """As the papers have it: the larger of the clipped surrogate and cap A for A < 0; a ratio bounded before."""

    def loss(s: Step, a: Tensor) -> Tensor:
        ratio = s.ratio.clamp(min=floor)
        inner = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
        return -torch.where(a < 0, torch.maximum(inner, cap * a), inner)

    return loss


def standardised(s: Step, a: Tensor) -> Tensor:
    log = s.now - s.old
    mean = s.mean(log.detach())[s.row]
    std = s.mean((log.detach() - mean) ** 2).sqrt().clamp(min=1e-2)[s.row]
    unit = (log - mean) / std
    return -std * torch.minimum(unit.exp() * a, unit.clamp(-2, 2).exp() * a)


def dppo(kind: str, limit: float) -> Loss:
    def weight(s: Step, a: Tensor) -> Tensor:
        p, q = s.now.detach().exp(), s.sampler.exp()
        others = torch.where(q < 1, (1 - q) * ((1 - q) / (1 - p)).log(), 0.0)
        far = ((p - q).abs() if kind == "tv" else q * (q / p).log() + others) > limit
        outside = far & torch.where(a > 0, p > q, p < q)
        return torch.where(outside, 0.0, (p / q).clamp(max=20))

    return weighed(weight)


def rec(*, ring: bool) -> Loss:
    def weight(s: Step, a: Tensor) -> Tensor:
        r = to_sampler(s)
        if not ring:
            return torch.where(a > 0, r <= 1.2, r >= 0.8).double()
        back = torch.where(a > 0, r <= 0.4, r >= 3.0)
        return ((r <= 1.2) & (r >= 0.8) | back).double()

    return weighed(weight)


def vespo(s: Step, a: Tensor) -> Tensor:
    ratio = whole(s).clamp(-10, 10).exp()
    power, decay = torch.where(a >= 0, 2.0, 3.0), torch.where(a >= 0, 3.0, 2.0)
    return -(ratio**power * (decay * (1 - ratio)).exp()) * a * s.now


def opmd(s: Step, a: Tensor) -> Tensor:
    return -a * s.now + (0.05 * s.sum(s.now - s.sampler) ** 2 / s.length)[s.row]


def llds(s: Step, a: Tensor) -> Tensor:
    fell = (s.sum((s.old - s.now).detach()) > 0)[s.row] & (a >= 0)
    return torch.where(fell, (s.old - s.now).clamp(min=0), 0.0)


def k3(s: Step, _a: Tensor) -> Tensor:
    return (s.ref - s.now).exp() - (s.ref - s.now) - 1


def k2_of(teacher: Callable[[Step], Tensor]) -> Loss:
    """d^2 / 2, linear beyond 10 nats."""

    def loss(s: Step, _a: Tensor) -> Tensor:
        d = (s.now - teacher(s)).abs()
        return torch.where(d <= 10, d**2 / 2, 10 * (d - 5))

    return loss


def entropy(s: Step, _a: Tensor) -> Tensor:
    return -s.entropy


# Means over tokens: (M,), by how much each counts


def token_mean(s: Step) -> Tensor:
    return torch.full((len(s.row),), 1 / len(s.row), dtype=torch.float64)


def sequence_mean(s: Step) -> Tensor:
    return (1 / (len(s.length) * s.length))[s.row].double()


def sequence_sum(s: Step) -> Tensor:
    return torch.full((len(s.row),), 1 / len(s.length), dtype=torch.float64)


def fixed_length(s: Step) -> Tensor:
    return sequence_sum(s) / MAX_TOKENS


def of_varied(s: Step) -> Tensor:
    """Over the tokens of groups of unequal rewards."""
    return torch.full((len(s.row),), 1 / int(s.varied[s.row].sum()), dtype=torch.float64)


def prompt_mean_of_varied(s: Step) -> Tensor:
    """Over those groups of the mean over the tokens of each."""
    num = len(s.group[s.varied].unique())
    return torch.where(s.varied, 1 / (num * s.by_group(np.sum, s.length.double())), 0.0)[s.row]


def delta_l(s: Step) -> Tensor:
    power = s.length.double() ** -0.75
    return (power / power.sum() / MAX_TOKENS)[s.row]
