"""Methods by their objective: loss, gradient and advantages of a run's last step against the paper's formula."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.e2e.conftest import Program
from tests.e2e.methods import formulas as f
from tests.e2e.methods.step import AtStep, Expected, Step, differs

Check = Callable[[Program, str], None]
"""Raises AssertionError unless a run of the method shows its defining behaviour."""
Weight = Callable[[Step, Tensor], Tensor]
"""(M,) of the advantage of each token, (M,)."""


@dataclass(frozen=True)
class AllOf:
    """One check after the other."""

    checks: tuple[Check, ...]

    def __call__(self, program: Program, run: str) -> None:
        """Raise AssertionError if one does."""
        for each in self.checks:
            each(program, run)


@dataclass(frozen=True)
class Plus:
    """A further term."""

    loss: f.Loss
    coefficient: float
    advantage: AtStep = f.grpo
    mean: AtStep = f.token_mean


USUAL = f.clip(0.2, 0.28)
"""The loss of the recipe."""


@dataclass(frozen=True)
class Objective:
    """A method whose defining behaviour is the gradient that it takes."""

    loss: f.Loss = USUAL
    advantage: AtStep = f.grpo
    mean: AtStep = f.token_mean
    weight: Weight | None = None
    """Without gradient."""
    plus: tuple[Plus, ...] = ()
    update: int = -1
    """That is looked at."""
    by_token: Callable[[Step, Tensor], Tensor] | None = None
    """Advantage of each token by that of its row, if they differ."""
    is_grpo: bool = False
    """True if the formula is GRPO's in a run like this."""

    def expected(self, step: Step) -> Expected:
        """The loss of the step."""
        advantage = self.advantage(step)
        of_tokens = advantage if len(advantage) == len(step.row) else advantage[step.row]
        weight = 1.0 if self.weight is None else self.weight(step, of_tokens).detach()
        total = (self.mean(step) * weight * self.loss(step, of_tokens)).sum()
        for each in self.plus:
            total = (
                total + each.coefficient * (each.mean(step) * each.loss(step, each.advantage(step)[step.row])).nansum()
            )
        return Expected(total, advantage)

    def __call__(self, program: Program, run: str) -> None:
        """Raise AssertionError if the last step of a run is not that of the formula, or plain GRPO would be too."""
        step = Step(program, run, self.update)
        assert step.steps == 2, "the update has two steps, of which the second moves nothing"
        expected = self.expected(step)
        wrong = differs(step, expected)
        assert not wrong, wrong
        plain = Objective().expected(step)
        assert self.is_grpo or differs(step, Expected(plain.loss)), "plain GRPO takes the same step here"


@dataclass(frozen=True)
class Whole:
    """A method whose loss is no sum over tokens: its gradient reaches the policy through coefficients of log-probs."""

    loss: AtStep
    """() by the paper."""
    has_coefficients: bool = True
    """True if the update's table has the coefficients of one mean over all rows."""

    def __call__(self, program: Program, run: str) -> None:
        """Raise AssertionError unless gradient and coefficients are those of the loss."""
        step = Step(program, run)
        loss = self.loss(step)
        slope = torch.autograd.grad(loss, step.now, retain_graph=True)[0]
        coefficient = -slope * len(step.length) * step.length[step.row]
        wrong = differs(step, Expected(loss, coefficient if self.has_coefficients else None, value=False))
        assert not wrong, wrong


def log_sigmoid(values: Tensor) -> Tensor:
    return torch.nn.functional.logsigmoid(values)


def over_pairs(each: Callable[[Step, Tensor, Tensor, Tensor], Tensor], to: str, *, mean: bool = False) -> AtStep:
    """The mean over all pairs (w, l) of a group of different rewards, of the log ratios h to `old` or `ref`."""

    def loss(s: Step) -> Tensor:
        h = (s.mean if mean else s.sum)(s.now - getattr(s, to))
        won, lost = torch.tensor(s.pairs(lambda i, j: float(s.reward[i]) > float(s.reward[j]))).T
        return each(s, won, h[won], h[lost]).mean()

    return loss


def dpo(_s: Step, _won: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return -log_sigmoid(0.1 * (first - second))


def trpa(s: Step) -> Tensor:
    def pair(s: Step, won: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return -log_sigmoid(torch.where(s.reward[won] >= 1, 2.5, 1.0) * (first - second))

    back = s.old - s.now
    return over_pairs(pair, "ref", mean=True)(s) + 0.001 * (back.exp() - back - 1).mean()


def all_pairs(x: Callable[[Step], Tensor]) -> AtStep:
    """The mean over all pairs of a group, equal rewards too, of (x_i - x_j)^2."""

    def loss(s: Step) -> Tensor:
        first, second = torch.tensor(s.pairs(lambda i, j: i < j)).T
        values = x(s)
        return ((values[first] - values[second]) ** 2).mean()

    return loss


def reg_grpo(s: Step) -> Tensor:
    log, advantage, parts = s.sum(s.now - s.old), f.grpo(s), list[Tensor]()
    for group in s.group[s.varied].unique():
        at = s.group == group
        scale = max(1.0, float(log[at].detach().std()))
        parts.append((advantage[at] - (log[at] - log[at].mean()) / scale) ** 2)
    return torch.cat(parts).mean()


def disco(s: Step) -> Tensor:
    score, parts = s.mean(s.now), list[Tensor]()
    for group in s.group.unique():
        right, wrong = (score[(s.group == group) & (s.reward == value)] for value in (1, 0))
        if len(right) and len(wrong):
            parts.append(right.mean() - 10 * ((wrong / 10).exp().mean()).log())
    kl = (s.old - s.now).mean()
    return -torch.stack(parts).sum() / len(s.group.unique()) + 500 * (kl - 1e-4).clamp(min=0) ** 2


def given_first(s: Step) -> Tensor:
    h = s.sum(s.now - s.ref)
    given, own = torch.tensor(s.pairs(lambda i, j: not s.own[i] and bool(s.own[j]))).T
    return -log_sigmoid(0.1 * (h[given] - h[own])).mean()


# Weights of tokens


def covariance(s: Step, a: Tensor) -> Tensor:
    logp = s.now.detach()
    return (a - a.mean()) * (logp - logp.mean())


def clip_cov(s: Step, a: Tensor) -> Tensor:
    """A token of covariance in (1, 5), by the draw that the run made: which one the loss cannot say beforehand."""
    found = ((covariance(s, a) > 1) & (covariance(s, a) < 5)).nonzero()[:, 0]
    left = found[torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[: max(1, len(a) // 5000)]]
    return torch.ones(len(a)).index_fill(0, left, 0.0)


def most(key: Tensor, num: int) -> Tensor:
    return torch.zeros(len(key)).index_fill(0, key.argsort(descending=True)[:num], 1.0)


def top(key: Tensor, frac: float) -> Tensor:
    return (key >= float(np.quantile(key.detach().numpy(), 1 - frac))).double()


def bapo(s: Step, a: Tensor) -> Tensor:
    """Bounds on the grid of the authors' steps, the first pair at which positive tokens have their half."""
    r, low, high = s.ratio.detach(), 0.6, 1.2

    def share() -> float:
        positive = (r.clamp(max=high) * a)[a >= 0].sum()
        return float(positive / -(r.clamp(min=low) * a)[a < 0].sum())

    while share() < 1 and low < 0.9 - 1e-9:
        low += 0.05
    while share() < 1 and high < 3 - 1e-9:
        high += 0.1
    return torch.where(a >= 0, r <= high, (r >= low) & (r <= 3)).double()


def hapo(s: Step, a: Tensor) -> Tensor:
    level = s.entropy.detach().clamp(min=1e-8).log()
    h = level - level.sort().values[round(0.5 * (len(level) - 1))]
    h = torch.where(h > 0, h / h.max(), h / -h.min())
    down, up, r = 0.2 * (1 - h.clamp(max=0)), 0.2 * (1 + h.clamp(min=0)), s.ratio.detach()
    inside = (r > 1 - down / 2) & (r < 1 + up / 2)
    kept = torch.where(a >= 0, r <= 1 + up, (r >= 1 - down) & (r <= 3))
    return kept * torch.where((h > 0) != inside, 1 + h, 1.0)


def steer(s: Step, a: Tensor) -> Tensor:
    p = s.now.detach().exp().clamp(1e-8, 1 - 1e-8)
    change = (a / s.old.exp() * p * (1 - p) * (p.log() + s.entropy.detach())).abs()
    return 1.2 - 0.4 * (change - change.min()) / (change.max() - change.min())


def entropy_shaped(s: Step, a: Tensor) -> Tensor:
    psi = torch.minimum(0.4 * s.entropy.detach(), a.abs() / 2)
    return torch.where(a != 0, (a + psi) / a, 1.0)


def weighed_by(weight: Callable[[Tensor], Tensor]) -> Weight:
    return lambda _s, a: weight(a)


def without_outliers(a: Tensor) -> Tensor:
    return ((a - a.mean()).abs() <= 3 * a.std(correction=0)).double()


# Importance weights: of the policy before the update (`old`), or of the step (`now`), to the sampler


def importance(
    policy: str, level: str = "none", cap: float = 2.0, rejects: Callable[[Step, Tensor], Tensor] | None = None
) -> Weight:
    """min(w, cap) by token, completion or geometric mean, in completions that `rejects` does not leave out."""

    def weight(s: Step, _a: Tensor) -> Tensor:
        log = (getattr(s, policy) - s.sampler).detach()
        of = {"none": 0 * log, "token": log, "sequence": s.sum(log)[s.row], "geometric": s.mean(log)[s.row]}[level]
        kept = 1.0 if rejects is None else 1.0 - rejects(s, log)[s.row].double()
        return of.clamp(-10, 10).exp().clamp(max=cap) * kept

    return weight


def far(s: Step, log: Tensor) -> Tensor:
    """Geometric mean outside 1 +- 0.001."""
    return (s.mean(log).exp() - 1).abs() > 0.001


def k3_far(s: Step, log: Tensor) -> Tensor:
    return s.mean(log.exp() - 1 - log) > 0.01


def icepop(policy: str) -> Weight:
    def weight(s: Step, _a: Tensor) -> Tensor:
        w = (getattr(s, policy) - s.sampler).detach().exp()
        return torch.where((w >= 0.5) & (w <= 5), w, 0.0)

    return weight


def clipped(
    low: float = 0.2, high: float = 0.2, advantage: AtStep = f.grpo, mean: AtStep = f.token_mean, **more: Any
) -> Objective:
    """The clipped surrogate."""
    return Objective(f.clip(low, high), advantage, mean, **more)


KL = partial(Plus, f.k3)
by_reward = partial(Objective, f.reinforce)


def all_of(*checks: Check) -> AllOf:
    """One check after the other."""
    return AllOf(checks)


def learns(check: Check) -> bool:
    """Return whether the last step of a run is computed anew, for which it needs the settings `LEARNING`."""
    return any(map(learns, check.checks)) if isinstance(check, AllOf) else isinstance(check, Objective | Whole)
