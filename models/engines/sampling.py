"""Drawing one token a row from logits, and the stop strings that end a completion.

Tokens are drawn by inverse CDF on given uniforms, so that the caller owns the random numbers. A completion ends with
the first token that completes a stop string; these are looked for in the text of its last tokens, so that a step costs
the same however long it is. Special tokens are not text.
Left out: min-p, penalties. Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gradus.models.policy import completion_texts

CHUNK_ELEMENTS = 1 << 24
"""Logits (rows x vocabulary) drawn from at once; more are done in pieces, which changes no bit."""
MARGIN_TOKENS = 8
"""Tokens beyond those that a stop string can have: some tokens are not text, and the first may lose a space."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of each row: temperature (B, 1) float32, 0 greedy; top_p (B, 1) float64; top_k (B, 1) int64, 0 for all.

    On the CPU wherever the logits are: what is to be done is decided without asking another device.
    Top-k is applied first, then top-p to what it left, each renormalised, which is vLLM's order too.
    """

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor

    def select(self, index: Tensor) -> "SamplingParams":
        """The rows of these indices."""
        return SamplingParams(self.temperature[index], self.top_p[index], self.top_k[index])


def draw(logits: Tensor, how: SamplingParams, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids (B,) for uniforms (B,) float64 in [0, 1), and their log-probs (B,) float32 as drawn from, in nats.

    Logits may be on any device, the rest and the results are on the CPU.
    The token is the first whose cumulative probability, summed in float64 in the order of the vocabulary, exceeds the
    uniform. Greedy rows take the most probable token (the first of equals), their log-prob is that at temperature 1.
    """
    rows = max(1, CHUNK_ELEMENTS // logits.shape[-1])
    if len(logits) <= rows:
        return _draw(logits, how, uniform)
    places = torch.arange(len(logits)).split(rows)
    parts = [_draw(logits[index], how.select(index), uniform[index]) for index in places]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([logp for _, logp in parts])


def _draw(logits: Tensor, how: SamplingParams, uniform: Tensor) -> tuple[Tensor, Tensor]:
    greedy, device = how.temperature == 0, logits.device
    temperature = how.temperature.masked_fill(greedy, 1.0).to(device)
    logp = _truncated(torch.log_softmax(logits.float() / temperature, -1), how)
    total = logp.double().exp().cumsum(-1)
    # Scaled by the whole, since rounding leaves the whole beside 1; a token of no mass is never the first to exceed.
    aim = uniform[:, None].to(device) * total[:, -1:]
    drawn = torch.searchsorted(total, aim, right=True).clamp_max_(logp.shape[-1] - 1)
    tokens = torch.where(greedy.to(device), logp.argmax(-1, keepdim=True), drawn)
    return tokens[:, 0].cpu(), logp.gather(-1, tokens)[:, 0].cpu()


def _truncated(logp: Tensor, how: SamplingParams) -> Tensor:
    """Log-probs (B, V) at temperature, renormalised over what each row's top-k, then its top-p leaves; greedy as is."""
    greedy, device = how.temperature == 0, logp.device
    few = (how.top_k > 0) & ~greedy
    if bool(few.any()):
        logp = torch.where(few.to(device), most_probable(logp, how.top_k), logp)
    cut = (how.top_p < 1) & ~greedy
    if bool(cut.any()):
        logp = torch.where(cut.to(device), nucleus(logp, how.top_p.to(device)), logp)
    return logp


def nucleus(logp: Tensor, top_p: Tensor) -> Tensor:
    """Log-probs (B, V) renormalised over the fewest most probable tokens whose mass reaches top_p (B, 1).

    Nucleus sampling (arXiv 1904.09751); the token that crosses top_p stays in, so that one token is always left.
    """
    ordered, order = logp.sort(dim=-1, descending=True, stable=True)
    mass = ordered.double().exp()
    before = mass.cumsum(-1) - mass
    cut = torch.zeros_like(logp, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return torch.log_softmax(logp.masked_fill(cut, -torch.inf), -1)


def most_probable(logp: Tensor, top_k: Tensor) -> Tensor:
    """Log-probs (B, V) renormalised over the top_k (B, 1) most probable tokens, ties with the last of them included."""
    largest = int(top_k.clamp(1, logp.shape[-1]).max())
    ordered = logp.topk(largest, dim=-1).values
    least = ordered.gather(-1, top_k.clamp(1, largest).to(logp.device) - 1)
    return torch.log_softmax(logp.masked_fill(logp < least, -torch.inf), -1)


def tail_tokens(stop: Sequence[str]) -> int:
    """Return how many last tokens are looked at: a token is at least a byte of text."""
    return max((len(text.encode()) for text in stop), default=0) + MARGIN_TOKENS


def stopped(
    tokenizer: PreTrainedTokenizerBase, tails: Sequence[Sequence[int]], stops: Sequence[Sequence[str]]
) -> list[bool]:
    """Return for each completion whether its last tokens contain one of its stop strings."""
    texts = completion_texts(tokenizer, tails)
    return [any(stop in text for stop in own) for text, own in zip(texts, stops, strict=True)]


def cut_behind(text: str, stop: Sequence[str]) -> str:
    r"""Return the text up to and including the stop string that ends first; all of it if there is none.

    >>> cut_behind("7\n\nQuestion: 8", ["Question", "\n\n"])
    '7\n\n'
    """
    ends = [text.index(each) + len(each) for each in stop if each in text]
    return text[: min(ends)] if ends else text
