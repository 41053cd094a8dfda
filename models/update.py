"""The policy update: judged rollouts in, optimiser steps out. Deterministic for a batch, a policy and its state.

One pass: rows -> minibatches of whole groups -> micro-batches -> AdamW. The loss of a step is normalised by that
step's own counts, so micro-batching changes nothing beyond rounding.
The ratio's denominator: with one optimiser step the policy's own log-probs (ratio 1, exactly on-policy); with several,
those of the policy before the first one, recomputed by the trainer, so that sampler and trainer numerics do not mix.
Left out: several devices, adapters, mixed precision.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.batch import TokenBatch
from models.logprobs import Sequences, token_logprobs
from models.losses import AGGREGATIONS, LOSSES, Totals, k3
from models.packing import micro_batches

Metrics = dict[str, float]
OnStep = Callable[[int, Metrics], None]


class UpdateError(RuntimeError):
    """An update that must not be taken; the sentence says why."""


@dataclass(frozen=True)
class Rollouts:
    """The rows that an update learns from; N rows, lists of token ids ragged."""

    prompts: Sequence[Sequence[int]]
    completions: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]
    """The sampler's log-probs, nats."""
    temperature: Tensor
    """(N,) sampling temperature."""
    advantage: Tensor
    """(N,) float64."""
    group: Tensor
    """(N,) int64."""
    max_tokens: int
    """The completion limit of the plan."""


@dataclass(frozen=True)
class Settings:
    """The arguments of the update; see tasks.config.UpdateConfig for what each means."""

    loss: str
    loss_settings: Mapping[str, float]
    aggregation: str
    kl_coef: float
    entropy_coef: float
    lr: float
    warmup_steps: int
    weight_decay: float
    betas: tuple[float, float]
    max_grad_norm: float
    epochs: int
    minibatch_groups: int
    micro_tokens: int


@dataclass
class Learner:
    """A policy in training: its model, its optimiser and how many steps the run has taken."""

    model: PreTrainedModel
    optimizer: torch.optim.AdamW
    step: int = 0

    @classmethod
    def new(cls, model: PreTrainedModel, settings: Settings) -> "Learner":
        """A learner with a fresh optimiser."""
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
        )
        return cls(model, optimizer)


@dataclass(frozen=True)
class Plan:
    """The optimiser steps of one update: the rows of each, decided before the first."""

    steps: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rollouts: Rollouts, settings: Settings, rng: np.random.Generator) -> "Plan":
        """Whole groups, shuffled anew for each epoch, `minibatch_groups` to a step (0: all in one)."""
        groups = np.unique(rollouts.group.numpy())
        size = settings.minibatch_groups or len(groups)
        steps: list[tuple[int, ...]] = []
        for _ in range(settings.epochs):
            order = rng.permutation(groups)
            for start in range(0, len(order), size):
                chosen = np.isin(rollouts.group.numpy(), order[start : start + size])
                steps.append(tuple(int(i) for i in np.flatnonzero(chosen)))
        return cls(tuple(steps))


def old_logprobs(model: PreTrainedModel, rollouts: Rollouts, micro_tokens: int) -> list[Tensor]:
    """The model's log-prob of every completion token, one (length,) tensor a row."""
    found: list[Tensor | None] = [None] * len(rollouts.completions)
    with torch.no_grad():
        for rows in micro_batches(_lengths(rollouts), micro_tokens):
            logp, _ = token_logprobs(model, _sequences(rollouts, rows), rollouts.temperature[rows])
            sizes = [len(rollouts.completions[i]) for i in rows]
            for row, part in zip(rows, logp.split(sizes), strict=True):
                found[row] = part
    return [part for part in found if part is not None]


def optimise(
    learner: Learner,
    rollouts: Rollouts,
    plan: Plan,
    settings: Settings,
    *,
    old: Sequence[Tensor],
    reference: Sequence[Tensor] | None,
    first: int,
    on_step: OnStep,
) -> list[Metrics]:
    """Take the steps of a plan from index `first` on; UpdateError where a step's loss or gradient is not finite."""
    taken: list[Metrics] = []
    on_policy = len(plan.steps) == 1
    for index in range(first, len(plan.steps)):
        rows = plan.steps[index]
        metrics = _step(learner, rollouts, rows, settings, None if on_policy else old, reference)
        taken.append(metrics)
        on_step(index, metrics)
    return taken


def _step(
    learner: Learner,
    rollouts: Rollouts,
    rows: Sequence[int],
    settings: Settings,
    old: Sequence[Tensor] | None,
    reference: Sequence[Tensor] | None,
) -> Metrics:
    model, optimizer = learner.model, learner.optimizer
    usable = _usable(rollouts, rows)
    totals = Totals.of(usable.mask, usable.row, len(rollouts.completions), rollouts.max_tokens)
    if totals.num_tokens == 0:
        raise UpdateError("a step has no token with a finite log-prob")
    optimizer.zero_grad(set_to_none=True)
    sums: dict[str, float] = {}
    lengths = _lengths(rollouts)
    for micro in micro_batches([lengths[i] for i in rows], settings.micro_tokens):
        chosen = [rows[i] for i in micro]
        loss, metrics = _micro_loss(model, rollouts, chosen, settings, totals, old, reference)
        loss.backward()
        for name, value in {"policy/loss": loss, **metrics}.items():
            sums[name] = sums.get(name, 0.0) + float(value.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm))
    if not (np.isfinite(norm) and np.isfinite(sums["policy/loss"])):
        raise UpdateError(f"step {learner.step + 1} has loss {sums['policy/loss']} and gradient norm {norm}")
    lr = settings.lr * min(1.0, (learner.step + 1) / max(1, settings.warmup_steps))
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    learner.step += 1
    per_token = ("policy/entropy", "policy/kl_ref", "policy/clip_frac_low", "policy/clip_frac_high")
    means = {name: sums[name] / totals.num_tokens for name in per_token if name in sums}
    return {"policy/loss": sums["policy/loss"], **means, "policy/grad_norm": norm, "policy/lr": lr}


@dataclass(frozen=True)
class _Usable:
    mask: Tensor
    row: Tensor


def _usable(rollouts: Rollouts, rows: Sequence[int]) -> _Usable:
    """Which tokens of a step count: those whose sampler log-prob is finite."""
    mask = torch.cat([torch.isfinite(torch.tensor(rollouts.logprobs[i], dtype=torch.float32)) for i in rows])
    row = torch.cat([torch.full((len(rollouts.completions[i]),), i) for i in rows])
    return _Usable(mask, row)


def _micro_loss(
    model: PreTrainedModel,
    rollouts: Rollouts,
    rows: Sequence[int],
    settings: Settings,
    totals: Totals,
    old: Sequence[Tensor] | None,
    reference: Sequence[Tensor] | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    logp, entropy = token_logprobs(model, _sequences(rollouts, rows), rollouts.temperature[rows])
    usable = _usable(rollouts, rows)
    batch = TokenBatch(
        logp=logp,
        logp_old=logp.detach() if old is None else torch.cat([old[i] for i in rows]),
        advantage=rollouts.advantage[usable.row].to(logp.dtype),
        mask=usable.mask,
        row=usable.row,
        entropy=entropy,
        logp_ref=None if reference is None else torch.cat([reference[i] for i in rows]),
    ).finite()
    loss, metrics = LOSSES[settings.loss](batch, **settings.loss_settings)
    metrics = {f"policy/{name}": value for name, value in metrics.items()}
    if batch.logp_ref is not None:
        kl = k3(batch.logp, batch.logp_ref)
        loss = loss + settings.kl_coef * kl
        metrics["policy/kl_ref"] = torch.where(batch.mask, kl, 0.0).sum()
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * entropy
    metrics["policy/entropy"] = torch.where(batch.mask, entropy, 0.0).sum()
    return AGGREGATIONS[settings.aggregation](loss, batch.mask, batch.row, totals), metrics


def mismatch(rollouts: Rollouts, old: Sequence[Tensor]) -> Metrics:
    """How sampler and trainer differ on the same tokens: k3 KL, ratio, |difference| of log-probs (nats)."""
    sampler = torch.cat([torch.tensor(row, dtype=torch.float32) for row in rollouts.logprobs])
    trainer = torch.cat(list(old))
    finite = torch.isfinite(sampler)
    difference = (trainer - sampler)[finite]
    if difference.numel() == 0:
        return {"mismatch/masked_frac": 1.0}
    return {
        "mismatch/kl": float(k3(sampler[finite], trainer[finite]).mean()),
        "mismatch/ratio_mean": float(difference.exp().mean()),
        "mismatch/ratio_max": float(difference.exp().max()),
        "mismatch/logp_diff_mean": float(difference.abs().mean()),
        "mismatch/logp_diff_max": float(difference.abs().max()),
        "mismatch/masked_frac": float((~finite).double().mean()),
    }


def _lengths(rollouts: Rollouts) -> list[int]:
    return [len(p) + len(c) for p, c in zip(rollouts.prompts, rollouts.completions, strict=True)]


def _sequences(rollouts: Rollouts, rows: Sequence[int]) -> Sequences:
    prompts: list[Any] = [rollouts.prompts[i] for i in rows]
    completions: list[Any] = [rollouts.completions[i] for i in rows]
    return Sequences(prompts, completions)
