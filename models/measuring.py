"""A frozen model as measures see it: log-probs of given tokens, hidden states and values, by forward passes.

    found = model.logprobs(model.prompts(rows["question"]), model.tokens(rows["answer"]))
    found.logp[0]         # of each token of the first answer, nats
    found.mean_logp       # (N,)
    found = model.logprobs(contexts, targets, temperature=0.7, logsumexp=True, top=4)
    found.top_ids[0]      # (L, 4): the tokens that were most likely in the place of each
    model.values(model.answered(rows["problem.question"], rows["completion"]))     # (N,), of a reward model

Batching, padding and devices are decided here. Left out: values at single tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradus.components.rows import Floats, Lists
from gradus.models.objectives.ragged import Ragged
from gradus.models.policy import Policy, prompt_tokens
from gradus.models.rendering import Asked as AskedPrompt
from gradus.models.rendering import prompt_texts
from gradus.models.templates import PLAIN, PromptConfig
from gradus.models.training.learning_rows import learning_rows
from gradus.models.training.packed.logprobs import Asked, TokenLogprobs, vocabulary
from gradus.models.training.packed.packing import padded_batches
from gradus.models.training.passes import Budget, OnRows, all_tokens, unobserved

Tokens = Sequence[Sequence[int]] | Lists
"""N lists of token ids."""
Pool = Callable[[Floats], Any]
"""Function of the hidden states of one text, (L, D), that returns a number, or a vector of the same length for all."""

_NONE = Lists(np.zeros(0), np.zeros(1, np.int64))


class MeasureError(ValueError):
    """Tokens that a model cannot be asked about."""


@dataclass(frozen=True)
class TargetLogprobs:
    """Log-probs and entropies (nats) of N targets; a target that was not measured has none."""

    logp: Lists
    """The log-prob of each token at the temperature that was asked for."""
    entropy: Lists
    """The entropy of the distribution that each token was drawn from."""
    logsumexp: Lists = _NONE
    """Of the logits divided by the temperature, in the place of each token; no lists unless asked for."""
    top_ids: Lists = _NONE
    """(L, K) int64 for each target: the K most likely tokens in the place of each of its own, the likeliest first; no
    lists unless asked for."""
    top_logp: Lists = _NONE
    """(L, K) for each target: their log-probs; no lists unless asked for."""

    @cached_property
    def mean_logp(self) -> Floats:
        """(N,): the mean log-prob of a target's tokens; NaN for a target that was not measured."""
        return _means(self.logp)

    @cached_property
    def mean_prob(self) -> Floats:
        """(N,): the mean probability of a target's tokens; NaN for a target that was not measured."""
        return _means(Lists(np.exp(self.logp.values), self.logp.offsets))

    @cached_property
    def mean_entropy(self) -> Floats:
        """(N,): the mean entropy of a target's tokens; NaN for a target that was not measured."""
        return _means(self.entropy)


class Model:
    """A policy, or a model with a scalar head, in evaluation mode. Nothing of what it returns has a gradient."""

    def __init__(
        self, policy: Policy, style: PromptConfig = PLAIN, micro_tokens: int = 16_384, on_rows: OnRows = unobserved
    ) -> None:
        self._policy, self._style, self._on_rows = policy, style, on_rows
        self._budget = Budget(micro_tokens)
        self._context_tokens = policy.context_tokens

    def tokens(self, texts: Sequence[str | None]) -> list[list[int]]:
        """Return the token ids of texts that follow a context; none for None."""
        return [
            [int(each) for each in self._policy.tokenizer(text, add_special_tokens=False)["input_ids"]] if text else []
            for text in texts
        ]

    def prompts(
        self, questions: Sequence[str | None], messages: Sequence[list[dict[str, str]] | None] | None = None
    ) -> list[list[int]]:
        """Return the prompts of problems as token ids, as the rollouts have them; PolicyError for one without."""
        turns = [None] * len(questions) if messages is None else messages
        asked = [AskedPrompt(question, each) for question, each in zip(questions, turns, strict=True)]
        return self._rendered(asked)

    def answered(
        self,
        questions: Sequence[str | None],
        answers: Sequence[str | None],
        messages: Sequence[list[dict[str, str]] | None] | None = None,
    ) -> list[list[int]]:
        """Return problems with their answers as token ids, each by the model's own chat template; none for None.

        The answer is the assistant's finished turn; without a chat template it follows the prompt, and nothing ends it.
        A special token that an answer spells out is that token, as for transformers. PolicyError as `prompts` has it.
        """
        turns = [None] * len(questions) if messages is None else messages
        whole = zip(questions, turns, answers, strict=True)
        asked = [AskedPrompt(question, each, answer=answer) for question, each, answer in whole if answer is not None]
        found = iter(self._rendered(asked))
        return [[] if answer is None else next(found) for answer in answers]

    def _rendered(self, asked: Sequence[AskedPrompt]) -> list[list[int]]:
        return prompt_tokens(self._policy.tokenizer, prompt_texts(self._policy.tokenizer, asked, self._style))

    def logprobs(
        self,
        contexts: Tokens,
        targets: Tokens,
        *,
        temperature: float | Floats = 1.0,
        logsumexp: bool = False,
        top: int = 0,
    ) -> TargetLogprobs:
        """Return log-probs and entropies of each target (N) after its context, and what else is asked for.

        A target is not measured if it or its context is empty, or both do not fit the model's positions together.
        Raise MeasureError for token ids that the model does not have, a temperature below 0, and a model that has a
        scalar head.

        Args:
            contexts: N lists of token ids.
            targets: N lists of token ids.
            temperature: Of the softmax, one or (N,). 0 is read as 1, as samplers record it, and so is NaN, that of a
                row that nobody sampled.
            logsumexp: True to have the logsumexp of the logits, too.
            top: Number of the most likely tokens in the place of each that are returned with their log-probs.
        """
        if not self._policy.model.can_generate():
            raise MeasureError("log-probs need a language model, and this one has a scalar head: ask for values")
        if len(contexts) != len(targets):
            raise MeasureError(f"there are {len(contexts)} contexts and {len(targets)} targets")
        if top > (num := vocabulary(self._policy.model)):
            raise MeasureError(f"the model has {num} tokens, and the {top} most likely are asked for")
        at = np.nan_to_num(np.asarray(temperature, np.float32), nan=1.0, posinf=np.inf)
        at = torch.from_numpy(np.broadcast_to(at, len(targets)).copy())
        if not (at.isfinite() & (at >= 0)).all():
            raise MeasureError("a temperature is neither 0 nor a positive number")
        before, after = self._ragged(contexts), self._ragged(targets)
        whole = before.lengths + after.lengths
        fits = (before.lengths > 0) & (after.lengths > 0) & (whole <= self._context_tokens)
        chosen = fits.nonzero()[:, 0]
        none, likely = torch.zeros(0), torch.zeros(0, top)
        found = TokenLogprobs(none, none, top_ids=likely.long(), top_logp=likely, logsumexp=none)
        if len(chosen):
            kept = after.select(chosen)
            logprobs = torch.zeros(len(kept.values))
            rows = learning_rows(before.select(chosen), kept, logprobs=logprobs, temperature=at[chosen])
            asked = Asked(logsumexp=logsumexp, top_k=top)
            found = all_tokens(self._policy.model, rows, self._budget, self._on_rows, asked)
        names = ["logp", "entropy", *(["logsumexp"] if logsumexp else []), *(["top_ids", "top_logp"] if top else [])]
        return TargetLogprobs(**{name: _spread(getattr(found, name), after.lengths, fits) for name in names})

    def hidden(self, texts: Tokens, pool: Pool, layer: int = -1) -> Floats:
        """Return what `pool` makes of the hidden states (L, D) of each text, (N,) or (N, K).

        NaN for a text that is empty, or longer than the model's positions. MeasureError for token ids that the model
        does not have.

        Args:
            texts: N lists of token ids.
            pool: Function of float32 hidden states; it is called once a text.
            layer: As in transformers: 0 are the embeddings, -1 is what the last layer makes, after the final norm.
        """
        return self._of_each(texts, lambda part: [pool(each) for each in self._states(part, layer)])

    def values(self, texts: Tokens) -> Floats:
        """Return the number that a scalar head has for each text, (N,), as transformers' sequence classification does.

        A decoder's is that of the last token that is not padding. NaN for a text that is empty, or longer than the
        model's positions. MeasureError for token ids that the model does not have, or a model without such a head.
        """
        if self._policy.model.can_generate():
            said = "values need a model with a scalar head, and this one is a language model: name another role"
            raise MeasureError(said)
        return self._of_each(texts, self._scores, alone=self._padding is None)

    def _of_each(self, texts: Tokens, ask: Callable[[Ragged], Sequence[Any]], *, alone: bool = False) -> Floats:
        """Return what `ask` returns for each text, in batches or one by one; NaN for a text that does not fit."""
        rows = self._ragged(texts)
        chosen = ((rows.lengths > 0) & (rows.lengths <= self._context_tokens)).nonzero()[:, 0]
        if not len(chosen):
            return np.full(len(rows), np.nan)

        def work(num_tokens: int) -> dict[int, Any]:
            found = dict[int, Any]()
            for part in padded_batches(rows.lengths[chosen], 1 if alone else num_tokens):
                numbers = chosen[part]
                found |= dict(zip(numbers.tolist(), ask(rows.select(numbers)), strict=True))
                self._on_rows(len(part))
            return found

        with torch.no_grad():
            answers = self._budget.run(work, int(rows.lengths[chosen].max()))
        first = np.asarray(next(iter(answers.values())), np.float64)
        return np.stack([np.asarray(answers.get(row, np.full(first.shape, np.nan))) for row in range(len(rows))])

    def _states(self, texts: Ragged, layer: int) -> list[Floats]:
        decoder: Any = self._policy.model.get_decoder()
        states = decoder(**self._padded(texts), use_cache=False, output_hidden_states=True).hidden_states[layer]
        lengths = texts.lengths.tolist()
        return [each[:length].float().cpu().numpy() for each, length in zip(states, lengths, strict=True)]

    def _scores(self, texts: Ragged) -> list[float]:
        return self._policy.model(**self._padded(texts, self._padding or 0)).logits[:, 0].double().tolist()

    @property
    def _padding(self) -> int | None:
        """The token that the model's head takes for padding; None if it has none, and then takes texts one by one."""
        model = self._policy.model
        found = model.config.get_text_config().pad_token_id
        return found if found is not None and 0 <= found < vocabulary(model) else None

    def _padded(self, texts: Ragged, padding: int = 0) -> dict[str, Tensor]:
        device = self._policy.model.device
        mask = torch.arange(int(texts.lengths.max()))[None, :] < texts.lengths[:, None]
        ids = torch.full(mask.shape, padding, dtype=torch.int64)
        ids[mask] = texts.values
        return {"input_ids": ids.to(device), "attention_mask": mask.long().to(device)}

    def _ragged(self, lists: Tokens) -> Ragged:
        if isinstance(lists, Lists):
            found = Ragged(torch.from_numpy(lists.values.astype(np.int64)), torch.from_numpy(lists.offsets.copy()))
        else:
            found = Ragged.of(list(lists))
        num = vocabulary(self._policy.model)
        odd = found.values[(found.values < 0) | (found.values >= num)]
        if len(odd):
            raise MeasureError(f"token {int(odd[0])} is none of the model's {num}: it is another tokenizer's")
        return found


def _spread(values: Tensor | None, lengths: Tensor, fits: Tensor) -> Lists:
    """Return lists of which those of `fits` (N,) have values, and the others none."""
    assert values is not None, "a pass returns what is asked for"
    offsets = np.concatenate([[0], np.where(fits.numpy(), lengths.numpy(), 0).cumsum()])
    return Lists((values.double() if values.is_floating_point() else values).numpy(), offsets)


def _means(lists: Lists) -> Floats:
    lengths = np.diff(lists.offsets)
    sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), lists.values, len(lengths))
    return np.where(lengths > 0, sums / np.maximum(lengths, 1), np.nan)
