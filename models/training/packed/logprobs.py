"""Log-probs and entropies of a pack's completion tokens under a model.

Only completion positions reach the vocabulary: the hidden states of others are dropped first, and the logits of a
bounded number of positions are in memory at once, in the backward pass too. The head runs inside the model's call.
A sampler that truncates (top-k, top-p) records log-probs renormalised over what it left, log(p / S) with S the mass of
that; the full softmax beside them is off by log S at every token, whatever was sampled (trl#6789).
Left out: truncation like the sampler's; the gradient through sampling; a head fused with the softmax.
Shapes: R rows, M completion tokens of all rows end to end, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from gradus.models.training.packed.forward import Form, with_hidden_states
from gradus.models.training.packed.packing import Pack

CHUNK_LOGITS = 2**26
"""Logits, positions times vocabulary, that are in memory at once: 256 MB in float32."""


class TokenLogprobs(NamedTuple):
    """Of every completion token, all (M,) float32, nats, on the CPU wherever the model is.

    A loss of M numbers costs next to nothing there; its many metrics would each wait for an accelerator.
    """

    logp: Tensor
    """Its log-prob under the full softmax at its row's temperature, with gradient."""
    entropy: Tensor
    """The entropy of that softmax."""
    candidates_logp: Tensor | None = None
    """(M, K) of the tokens of `Asked.candidates`, with gradient."""
    top_ids: Tensor | None = None
    """(M, K) int64: the most likely tokens in descending order."""
    top_logp: Tensor | None = None
    """(M, K) of these; no gradient."""
    logsumexp: Tensor | None = None
    """(M,) of the logits divided by the temperature, with gradient."""
    mean_logp: Tensor | None = None
    """(M,) mean of the log-probs of all V tokens, with gradient. The difference of two policies' is the vocabulary mean
    of their log-ratio."""
    logp_at_1: Tensor | None = None
    """(M,) the token's log-prob at temperature 1, with gradient."""
    head_gradient: Tensor | None = None
    """(M,) squared norm of the gradient g of the log-prob in the weights of the head, |e - p|^2 |h|^2 / T^2 with e the
    token's unit vector, p the softmax and h the hidden state; as if no factor or cap followed the head."""
    head_curvature: Tensor | None = None
    """(M,) g' F g, F the Fisher information of the head's weights at this token: u' (diag p - p p') u |h|^4 / T^4 with
    u = e - p."""


@dataclass(frozen=True)
class Asked:
    """Outputs to compute beside log-probs and entropies."""

    entropy_grad: bool = False
    """True if the entropy carries a gradient: what it needs costs as much memory as the logits."""
    candidates: Tensor | None = None
    """(M, K) int64 token ids."""
    top_k: int = 0
    """Number of the most likely tokens, of those with ids below `top_below` (0: of all)."""
    top_below: int = 0
    logsumexp: bool = False
    mean_logp: bool = False
    at_1: bool = False
    head: bool = False


def token_logprobs(
    model: PreTrainedModel, pack: Pack, temperature: Tensor, form: Form, asked: Asked = Asked()
) -> TokenLogprobs:
    """Log-probs and entropies of every completion token of a pack, and what else is asked for.

    `temperature` is (R,); 0 (greedy) is read at temperature 1, as the sampler records it. The softmax is float32
    whatever the model is.
    """
    row = pack.completions.row
    temperature = torch.where(temperature == 0, 1.0, temperature).float()[row]
    head = partial(_of_hidden, model, asked)
    size = max(1, CHUNK_LOGITS // vocabulary(model))

    def chunked(hidden: Tensor) -> TokenLogprobs:
        parts: list[TokenLogprobs] = []
        for part, states in enumerate(hidden.split(size)):
            piece = slice(part * size, part * size + len(states))
            others = None if asked.candidates is None else asked.candidates[piece].to(hidden.device)
            targets = pack.completions.values[piece].to(hidden.device)
            arguments = (states, targets, temperature[piece].to(hidden.device), others)
            if len(row) > size and torch.is_grad_enabled():
                parts.append(cast("TokenLogprobs", checkpoint(head, *arguments, use_reentrant=False)))
            else:
                parts.append(head(*arguments))
        return each_field(parts, torch.cat)

    return each_field([with_hidden_states(model, pack, form, chunked)], lambda values: values[0].cpu())


def each_field(parts: Sequence[TokenLogprobs], combine: Callable[[list[Tensor]], Tensor]) -> TokenLogprobs:
    """Combine several parts field by field."""
    columns = [None if values[0] is None else combine(list(values)) for values in zip(*parts, strict=True)]
    return TokenLogprobs._make(columns)


def vocabulary(model: PreTrainedModel) -> int:
    """V: how many token ids the model has embeddings for."""
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


def _of_hidden(
    model: PreTrainedModel,
    asked: Asked,
    hidden: Tensor,
    targets: Tensor,
    temperature: Tensor,
    candidates: Tensor | None,
) -> TokenLogprobs:
    """Compute the log-probs of tokens from hidden states, as the model itself does."""
    found = _compiled(hidden.device.type)(asked, _logits(model, hidden), targets, temperature, candidates)
    if found.head_gradient is None or found.head_curvature is None:
        return found
    size = hidden.detach().float().square().sum(-1)
    return found._replace(head_gradient=found.head_gradient * size, head_curvature=found.head_curvature * size**2)


def _of_logits(
    asked: Asked, logits: Tensor, targets: Tensor, temperature: Tensor, candidates: Tensor | None
) -> TokenLogprobs:
    logits = logits.float()
    scaled = logits / temperature[:, None]
    logsumexp = scaled.logsumexp(-1) if asked.logsumexp else None
    logp = torch.log_softmax(scaled, -1)
    del scaled  # as large as everything else
    with torch.set_grad_enabled(asked.entropy_grad and torch.is_grad_enabled()):
        entropy = -(logp.exp() * logp).sum(-1)
    gradient, curvature = _of_softmax(logp.detach(), targets, temperature) if asked.head else (None, None)
    top_logp, top_ids = logp.detach()[:, : asked.top_below or None].topk(asked.top_k) if asked.top_k else (None, None)
    return TokenLogprobs(
        logp=_chosen(logp, targets),
        entropy=entropy,
        candidates_logp=None if candidates is None else logp.gather(-1, candidates),
        top_ids=top_ids,
        top_logp=top_logp,
        logsumexp=logsumexp,
        mean_logp=logp.mean(-1) if asked.mean_logp else None,
        logp_at_1=_chosen(torch.log_softmax(logits, -1), targets) if asked.at_1 else None,
        head_gradient=gradient,
        head_curvature=curvature,
    )


def _of_softmax(logp: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """|u|^2 and u' (diag p - p p') u of u = e - p, over T^2 and T^4: those of a hidden state of length 1, (n,) each.

    The second is the variance of u under p. Neither is made of differences of numbers near 1: both are tiny for a token
    that is nearly certain, and their quotient counts.
    """
    p, at = logp.exp(), targets[:, None]
    others = p.scatter(-1, at, 0.0)
    u = (-others).scatter(-1, at, others.sum(-1, keepdim=True))
    variance = (p * (u - (p * u).sum(-1, keepdim=True)).square()).sum(-1)
    return u.square().sum(-1) / temperature**2, variance / temperature**4


def _chosen(logp: Tensor, targets: Tensor) -> Tensor:
    """Of each row of (n, V), the value at its target.

    On a GPU it is a masked sum: its gradient is fused with what follows, that of `gather` fills (n, V) float32 first.
    """
    if logp.device.type != "cuda":
        return logp.gather(-1, targets[:, None])[:, 0]
    ids = torch.arange(logp.shape[1], device=logp.device)
    return torch.where(ids == targets[:, None], logp, 0.0).sum(-1)


@cache
def _compiled(device: str) -> Callable[..., TokenLogprobs]:
    """Return `_of_logits`, compiled into few kernels on a GPU that has a compiler; as it is on a CPU.

    On a CPU, compiling takes longer than it saves.
    """
    if device != "cuda":
        return _of_logits
    try:
        fused = torch.compile(_of_logits, dynamic=True)
        ids, ones = (torch.ones(2, dtype=kind, device=device) for kind in (torch.int64, torch.float32))
        fused(Asked(), ones.expand(2, 2), ids, ones, None)
    except TorchDynamoException:
        return _of_logits
    return fused


def _logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Logits with the scaling that some architectures put after their head (Cohere, Granite, Gemma 2)."""
    config: Any = model.config
    logits: Tensor = cast("torch.nn.Module", model.get_output_embeddings())(hidden)
    # A factor of 1 would be two passes over the logits.
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    return cap * torch.tanh(logits / cap) if cap else logits
