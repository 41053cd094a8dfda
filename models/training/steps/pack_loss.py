"""The loss of one pack of a step: its tokens' losses by origin, weighted, regularised and aggregated."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.objectives.batch import StepView, TokenBatch, TopTokens
from gradus.models.objectives.losses import k3, regularised
from gradus.models.training.packed.forward import Form
from gradus.models.training.packed.logprobs import Asked, Logprobs, TokenLogprobs
from gradus.models.training.packed.packing import Pack
from gradus.models.training.passes import pass_logprobs
from gradus.models.training.steps.step_rows import StepRows

TokenMetrics = tuple[Mapping[str, Tensor], Tensor]
"""Metrics of tokens, each (m,), and the mask of those that they speak of."""


@dataclass(frozen=True)
class Prepared:
    """What the loss of a step is made with; tensors of its M tokens."""

    advantage: Tensor
    weight: Tensor | None
    """None weighs every token alike."""
    metrics: dict[str, Tensor]
    view: StepView | None
    """None if no component asked for it."""


@dataclass(frozen=True)
class PackLoss:
    """What a pack contributes to its step; m tokens."""

    loss: Tensor
    """The scalar whose gradient is the pack's part of that of the step."""
    metrics: list[TokenMetrics]
    own: Logprobs
    """The policy's log-probs, without gradient."""
    weight: Tensor
    """(m,): by how much each token's loss was multiplied."""

    @classmethod
    def of(cls, model: PreTrainedModel, about: StepRows, prepared: Prepared, pack: Pack, form: Form) -> "PackLoss":
        """Compute a pack's loss with the model as it is."""
        settings, at = about.settings, about.places(pack)
        own = pass_logprobs(model, about.rollouts, pack, form, _asked(about, about.tokens[at]))
        batch = _batch(about, prepared, at, own)
        loss, metrics = _by_origin(about, batch, about.origin[at])
        recorded = torch.isfinite(about.rollouts.logprobs[about.tokens[at]])
        weight, weighed = _weight(about, prepared, at, own, batch, recorded)
        loss = regularised(weight * loss, batch, kl_coef=settings.kl_coef, entropy_coef=settings.entropy_coef)
        found = {"entropy": own.entropy.detach()}
        kl_old = {"kl_old": k3(batch.logp_old, batch.logp.detach())}
        if batch.logp_ref is not None:
            found["kl_ref"] = k3(batch.logp.detach(), batch.logp_ref)
        total = settings.aggregation(loss, batch.mask, batch.row, about.totals)
        logprobs = Logprobs(about.tokens[at], own.logp.detach(), own.truncated_logp)
        # k3 estimates a KL on tokens that the policy sampled; on given ones it says how much they were learnt.
        sampled = about.rollouts.compared
        drawn = batch.mask if sampled is None else batch.mask & sampled[about.tokens[at]]
        parts = [*metrics, (found, batch.mask), (weighed, batch.mask & recorded), (kl_old, drawn)]
        return cls(total, parts, logprobs, weight)


def _asked(about: StepRows, tokens: Tensor) -> Asked:
    """What the components need of these tokens."""
    needs, teacher = about.settings.needs, about.references.teacher
    return Asked(
        entropy_grad=about.settings.entropy_coef != 0,
        candidates=None if teacher is None else teacher.ids[tokens],
        logsumexp="logsumexp" in needs,
        mean_logp="mean_logp" in needs,
        at_1="logp_at_1" in needs,
    )


def _batch(about: StepRows, prepared: Prepared, at: Tensor, own: TokenLogprobs) -> TokenBatch:
    known, tokens, logp = about.references, about.tokens[at], own.logp
    top = None
    if known.teacher is not None and own.candidates_logp is not None:
        top = TopTokens(known.teacher.logp[tokens], own.candidates_logp)
    return TokenBatch(
        logp=logp,
        logp_old=logp.detach() if known.old is None else known.old.logp[tokens],
        logp_sampler=about.rollouts.logprobs[tokens],
        entropy=own.entropy,
        advantage=prepared.advantage[at].to(logp.dtype),
        mask=about.mask[at],
        row=about.row[at],
        group=about.scored.group[about.row[at]],
        logp_ref=None if known.reference is None else known.reference[tokens],
        mean_logp=own.mean_logp,
        mean_logp_ref=None if known.reference_mean_logp is None else known.reference_mean_logp[tokens],
        logsumexp=own.logsumexp,
        logp_at_1=own.logp_at_1,
        teacher=top,
    ).filled()


def _by_origin(about: StepRows, batch: TokenBatch, origin: Tensor) -> tuple[Tensor, list[TokenMetrics]]:
    """The token losses (m,), each by the loss of its row's origin, and the metrics of each loss."""
    settings = about.settings
    if not settings.origin_losses:
        loss, found = settings.loss(batch)
        return loss, [(found, batch.mask)]
    loss = torch.zeros_like(batch.logp)
    metrics: list[TokenMetrics] = []
    for code, function in enumerate([settings.loss, *(each.loss for each in settings.origin_losses)]):
        chosen = origin == code
        if bool(chosen.any()):
            part, found = function(batch.select(chosen))
            loss = loss.masked_scatter(chosen, part)
            prefix = f"{settings.origin_losses[code - 1].origin}_" if code else ""
            metrics.append(({f"{prefix}{name}": value for name, value in found.items()}, batch.mask[chosen]))
    return loss, metrics


def _weight(
    about: StepRows, prepared: Prepared, at: Tensor, own: TokenLogprobs, batch: TokenBatch, recorded: Tensor
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Token weights times importance weights, (m,), and the metrics of the latter.

    Tokens without a sampler's log-prob, those that `recorded` (m,) leaves out, have an importance weight of 1.
    """
    settings, old = about.settings, about.references.old
    weight = torch.ones_like(own.logp) if prepared.weight is None else prepared.weight[at]
    if settings.correction is None:
        return weight, {}
    began = own.truncated_logp if old is None else old.truncated_logp[about.tokens[at]]
    factor, metrics = settings.correction(began, batch.logp_sampler, batch.row, batch.mask & recorded)
    return weight * torch.where(recorded, factor, 1.0), metrics
