"""Log-probs and entropies of a pack's completion tokens under a model.

Only completion positions reach the vocabulary: the hidden states of others are dropped first, and the logits of a
bounded number of positions are in memory at once.
A sampler that truncates (top-k, top-p) records log-probs renormalised over what it left, log(p / S) with S the mass of
that; the full softmax beside them is off by log S at every token, whatever was sampled (trl#6789). So the log-prob as
the sampler would record it is worked out here from the same logits, for comparing, without gradient.
Left out: the gradient through sampling; fused kernels.
Shapes: R rows, M completion tokens of all rows end to end, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from gradus.models.engines.sampling import SamplingParams, truncated_logprobs
from gradus.models.training.packed.forward import Form, hidden_states
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
    truncated_logp: Tensor
    """Its log-prob after the row's top-k and top-p, -inf if they exclude it; no gradient."""


@dataclass(frozen=True)
class Logprobs:
    """A policy's log-probs of completion tokens; all (M,)."""

    tokens: Tensor
    """int64: which of the T completion tokens of the update."""
    logp: Tensor
    """Under the full softmax."""
    truncated_logp: Tensor
    """After the row's top-k and top-p; see gradus.models.training.packed.logprobs."""

    @classmethod
    def joined(cls, parts: Sequence["Logprobs"]) -> "Logprobs":
        """Return several parts as one, in the order of the tokens."""
        tokens = torch.cat([part.tokens for part in parts])
        order = torch.argsort(tokens)
        return cls(
            tokens[order],
            torch.cat([part.logp for part in parts])[order],
            torch.cat([part.truncated_logp for part in parts])[order],
        )


def token_logprobs(
    model: PreTrainedModel,
    pack: Pack,
    temperature: Tensor,
    form: Form,
    *,
    entropy_grad: bool = False,
    drawn: SamplingParams | None = None,
) -> TokenLogprobs:
    """Log-probs and entropies of every completion token of a pack.

    `temperature` is (R,); 0 (greedy) is read at temperature 1, as the sampler records it. `drawn` says how the R rows
    were drawn; `truncated_logp` is `logp` without it and for rows that were not truncated. The softmax is float32
    whatever the model is. The entropy carries a gradient only where `entropy_grad` asks for it, since keeping what it
    needs costs as much memory as the logits.
    """
    hidden = hidden_states(model, pack, form)
    row, targets = pack.completions.row, pack.completions.values.to(hidden.device)
    temperature = torch.where(temperature == 0, 1.0, temperature).float()[row].to(hidden.device)
    head = _Head(model, entropy_grad)
    size = max(1, CHUNK_LOGITS // vocabulary(model))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, max(1, len(targets)), size):
        piece = slice(start, start + size)
        cut = drawn.select(row[piece]) if drawn is not None else None
        arguments = (hidden[piece], targets[piece], temperature[piece], cut)
        if len(targets) > size and torch.is_grad_enabled():
            parts.append(cast("tuple[Tensor, Tensor, Tensor]", checkpoint(head, *arguments, use_reentrant=False)))
        else:
            parts.append(head(*arguments))
    return TokenLogprobs(*(torch.cat(values).cpu() for values in zip(*parts, strict=True)))


def vocabulary(model: PreTrainedModel) -> int:
    """V: how many token ids the model has embeddings for."""
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


@dataclass(frozen=True)
class _Head:
    """Compute the log-probs of tokens from hidden states, as the model itself does."""

    model: PreTrainedModel
    entropy_grad: bool

    def __call__(
        self, hidden: Tensor, targets: Tensor, temperature: Tensor, drawn: SamplingParams | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        logp = torch.log_softmax(self.logits(hidden).float() / temperature[:, None], -1)
        with torch.set_grad_enabled(self.entropy_grad and torch.is_grad_enabled()):
            entropy = -(logp.exp() * logp).sum(-1)
        own = logp.gather(-1, targets[:, None])[:, 0]
        return own, entropy, _truncated_logp(logp.detach(), own.detach(), targets, drawn)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits with the scaling that some architectures put after their head (Cohere, Granite, Gemma 2)."""
        config: Any = self.model.config
        logits: Tensor = cast("torch.nn.Module", self.model.get_output_embeddings())(hidden)
        logits = logits * (getattr(config, "logit_scale", None) or 1.0)
        logits = logits / (getattr(config, "logits_scaling", None) or 1.0)
        cap: float | None = getattr(config, "final_logit_softcapping", None)
        return cap * torch.tanh(logits / cap) if cap else logits


def _truncated_logp(logp: Tensor, own: Tensor, targets: Tensor, drawn: SamplingParams | None) -> Tensor:
    """The tokens' own log-probs (M,), those of truncated rows renormalised over what truncation leaves of (M, V)."""
    index = torch.arange(0) if drawn is None else drawn.truncates.nonzero()[:, 0]
    if drawn is None or len(index) == 0:
        return own
    at = index.to(own.device)
    return own.index_copy(0, at, truncated_logprobs(logp[at], drawn.select(index), targets[at]))
