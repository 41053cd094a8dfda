"""The loss of one pack of a step: the sum of the objective's terms over its tokens."""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.objectives.losses import k3_divergence
from gradus.models.objectives.objective import Objective, advantage_column
from gradus.models.objectives.rows import Rows
from gradus.models.training.packed.forward import Form
from gradus.models.training.packed.logprobs import Asked, token_logprobs
from gradus.models.training.packed.packing import Pack

TokenMetrics = tuple[Mapping[str, Tensor], Tensor]
"""Metrics of tokens, each (m,), and the mask of those that they speak of."""


def loss_of(objective: Objective, rows: Rows, seen: Rows) -> tuple[Tensor, Tensor, Tensor, list[TokenMetrics]]:
    """Return the part of a pack of m tokens in the loss of its step, and (m,) log-probs, (m,) weights and metrics.

    The gradient of the loss is the pack's part of that of the step, with the model as it is; the log-probs carry none.
    The weights are by how much each token's loss was multiplied, regularisers apart.
    `rows` are the pack's of the step, with more columns of tokens: every advantage of the objective, and of each term
    `weight.I` (without one every token weighs alike) and `scale.I`, by how much the loss of a token counts. `seen` are
    the same with the policy's quantities (see `measured`).
    """
    recorded = torch.isfinite(rows["sampler.logp"])
    factor, found = torch.ones_like(seen["now.logp"].detach()), dict[str, Tensor]()
    if objective.correction is not None:  # importance weights, 1 for tokens that have no sampler's log-prob
        weight, found = objective.correction(seen.adding(mask=seen.mask & recorded))
        factor = torch.where(recorded, weight, 1.0)
    logp, members = seen["now.logp"].detach(), objective.members(rows)
    total, weights, said = logp.new_zeros(()), torch.ones_like(logp), list[TokenMetrics]()
    for index, term in reversed(list(enumerate(objective.terms))):
        inside = members[:, index]
        if not bool(inside.any()):
            continue
        own = seen.adding(of_tokens={"advantage": seen[advantage_column(term.advantage)].to(logp.dtype)})
        chosen = torch.arange(len(logp))
        if not bool(inside.all()):
            chosen, own = rows.places(inside.nonzero()[:, 0]), own.select(inside.nonzero()[:, 0])
        loss, metrics = term.losses(own)
        if not term.regulariser:
            weight = own.get(f"weight.{index}")
            multiplied = factor[chosen] if weight is None else weight * factor[chosen]
            loss = multiplied * loss
            weights[chosen] = multiplied
        total = total + term.coefficient * torch.where(own.mask, own[f"scale.{index}"] * loss, 0.0).sum()
        said.insert(0, ({f"{term.name}{name}": value for name, value in metrics.items()}, own.mask))
    of_all = {"entropy": seen["now.entropy"].detach()}
    if "reference.logp" in seen:
        of_all["kl_ref"] = k3_divergence(logp, seen["reference.logp"])
    # k3 estimates a KL on tokens that the policy sampled; on given ones it says how much they were learnt.
    kl_old = {"kl_old": k3_divergence(seen["old.logp"], logp)}
    said += [(of_all, seen.mask), (found, seen.mask & recorded), (kl_old, seen.mask & seen["compared"])]
    return total, logp, weights, said


def measured(model: PreTrainedModel, objective: Objective, rows: Rows, pack: Pack, form: Form) -> Rows:
    """Return the rows with the policy's quantities of their tokens, with gradient.

    Wherever a given log-prob is masked or was never recorded the policy's own stands: a gap must not stay in the
    tensors, since a masked NaN still makes the gradient NaN.
    """
    needs, mask = objective.of_pack(), rows.mask
    asked = Asked(
        entropy_grad="now.entropy" in needs,
        candidates=rows.get("teacher.ids"),
        logsumexp="now.logsumexp" in needs,
        mean_logp="now.mean_logp" in needs,
        at_1="now.logp_at_1" in needs,
    )
    own = token_logprobs(model, pack, rows["temperature"], form, asked)
    given = own.logp.detach()
    sampler, old, reference = rows["sampler.logp"], rows.get("old.logp"), rows.get("reference.logp")
    found = {
        "now.logp": own.logp,
        "now.entropy": own.entropy,
        "now.mean_logp": own.mean_logp,
        "now.logsumexp": own.logsumexp,
        "now.logp_at_1": own.logp_at_1,
        "now.top": own.candidates_logp,
        "old.logp": given if old is None else torch.where(mask, old, given),
        "sampler.logp": torch.where(mask & torch.isfinite(sampler), sampler, given),
        "reference.logp": None if reference is None else torch.where(mask, reference, given),
    }
    return rows.adding(of_tokens={name: values for name, values in found.items() if values is not None})
