"""A frozen model as measures see it: log-probs of given tokens, hidden states and values, by forward passes.

    found = model.logprobs(model.prompts(rows["question"]), model.tokens(rows["answer"]))
    found.logp[0]         # of each token of the first answer, nats
    found.mean_logp       # (N,)
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
from gradus.models.rendering import Asked, prompt_texts
from gradus.models.templates import PLAIN, PromptStyle
from gradus.models.training.learning_rows import learning_rows
from gradus.models.training.packed.logprobs import vocabulary
from gradus.models.training.packed.packing import padded_batches
from gradus.models.training.passes import Budget, OnRows, all_tokens, unobserved

Tokens = Sequence[Sequence[int]] | Lists
"""N lists of token ids."""
Pool = Callable[[Floats], Any]
"""Function of the hidden states of one text, (L, D), that returns a number, or a vector of the same length for all."""


class MeasureError(ValueError):
    """Tokens that a model cannot be asked about."""


@dataclass(frozen=True)
class TargetLogprobs:
    """Log-probs and entropies (nats) of N targets; a target that was not measured has none."""

    logp: Lists
    """The log-prob of each token at temperature 1."""
    entropy: Lists
    """The entropy of the distribution that each token was drawn from."""

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
        self, policy: Policy, style: PromptStyle = PLAIN, micro_tokens: int = 16_384, on_rows: OnRows = unobserved
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
        asked = [Asked(question, each) for question, each in zip(questions, turns, strict=True)]
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
        asked = [Asked(question, each, answer=answer) for question, each, answer in whole if answer is not None]
        found = iter(self._rendered(asked))
        return [[] if answer is None else next(found) for answer in answers]

    def _rendered(self, asked: Sequence[Asked]) -> list[list[int]]:
        return prompt_tokens(self._policy.tokenizer, prompt_texts(self._policy.tokenizer, asked, self._style))

    def logprobs(self, contexts: Tokens, targets: Tokens) -> TargetLogprobs:
        """Return log-probs and entropies of each target (N) after its context, at temperature 1.

        A target is not measured if it or its context is empty, or both do not fit the model's positions together.
        Raise MeasureError for token ids that the model does not have, or a model that has a scalar head.
        """
        if not self._policy.model.can_generate():
            raise MeasureError("log-probs need a language model, and this one has a scalar head: ask for values")
        if len(contexts) != len(targets):
            raise MeasureError(f"there are {len(contexts)} contexts and {len(targets)} targets")
        before, after = self._ragged(contexts), self._ragged(targets)
        whole = before.lengths + after.lengths
        fits = (before.lengths > 0) & (after.lengths > 0) & (whole <= self._context_tokens)
        chosen = fits.nonzero()[:, 0]
        if not len(chosen):
            return TargetLogprobs(*(_spread(torch.zeros(0), after.lengths, fits) for _ in range(2)))
        kept = after.select(chosen)
        rows = learning_rows(
            before.select(chosen),
            kept,
            logprobs=torch.zeros(len(kept.values)),
            temperature=torch.ones(len(chosen)),
        )
        found = all_tokens(self._policy.model, rows, self._budget, self._on_rows)
        return TargetLogprobs(*(_spread(each, after.lengths, fits) for each in (found.logp, found.entropy)))

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
            raise MeasureError(
                "values need a model with a scalar head, and this one is a language model: name another role"
            )
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


def _spread(values: Tensor, lengths: Tensor, fits: Tensor) -> Lists:
    """Return lists of which those of `fits` (N,) have values, and the others none."""
    offsets = np.concatenate([[0], np.where(fits.numpy(), lengths.numpy(), 0).cumsum()])
    return Lists(values.double().numpy(), offsets)


def _means(lists: Lists) -> Floats:
    lengths = np.diff(lists.offsets)
    sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), lists.values, len(lengths))
    return np.where(lengths > 0, sums / np.maximum(lengths, 1), np.nan)
