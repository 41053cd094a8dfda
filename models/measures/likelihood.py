"""Probabilities of texts under a model, and how certain it is of their tokens."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Floats, Lists, Rows
from gradus.models.measuring import Model


@component("measure", by=("rollout_id",), columns=("logp", "entropy"), needs=("prompt_tokens", "completion_tokens"))
def likelihood(rows: Rows, model: Model) -> Mapping[str, Any]:
    """Return the mean log-prob and the mean entropy (nats) of each completion's tokens at temperature 1."""
    found = model.logprobs(rows["prompt_tokens"], rows["completion_tokens"])
    return {"logp": found.mean_logp, "entropy": found.mean_entropy}


@component("measure", by=("rollout_id",), columns=("tokens",), needs=("prompt_tokens", "completion_tokens"))
def token_entropy(rows: Rows, model: Model) -> Mapping[str, Any]:
    """Return the entropy (nats) of the distribution at temperature 1 of each token of each completion, as lists."""
    return {"tokens": model.logprobs(rows["prompt_tokens"], rows["completion_tokens"]).entropy}


@component("measure", by=("rollout_id",), columns=("logp", "logsumexp"), needs=("prompt_tokens", "completion_tokens"))
def token_logprobs(rows: Rows, model: Model, *, temperature: Annotated[float, Ge(0.0)] = 1.0) -> Mapping[str, Any]:
    """Return the log-prob (nats) of each token of each completion, and the logsumexp of its logits, as lists.

    Args:
        temperature: Temperature of the softmax; 0 is read as 1.
    """
    found = model.logprobs(rows["prompt_tokens"], rows["completion_tokens"], temperature=temperature, logsumexp=True)
    return {"logp": found.logp, "logsumexp": found.logsumexp}


@component("measure", by=("rollout_id",), columns=("ids", "logp"), needs=("prompt_tokens", "completion_tokens"))
def token_top(
    rows: Rows, model: Model, *, k: Annotated[int, Ge(1)] = 8, temperature: Annotated[float, Ge(0.0)] = 1.0
) -> Mapping[str, Any]:
    """Return the k most likely tokens in the place of each token of each completion, and their log-probs (nats).

    Both are lists: k numbers for each token, the likeliest first, one token after the other.

    Args:
        k: Number of tokens in each place.
        temperature: Temperature of the softmax; 0 is read as 1.
    """
    found = model.logprobs(rows["prompt_tokens"], rows["completion_tokens"], temperature=temperature, top=k)
    ids, logp = (Lists(each.values.reshape(-1), k * each.offsets) for each in (found.top_ids, found.top_logp))
    return {"ids": ids, "logp": logp}


@component(
    "measure",
    by=("problem_id",),
    columns=("logp", "entropy"),
    needs=("question", "messages", "solution", "answer"),
)
def gold(rows: Rows, model: Model) -> Mapping[str, Any]:
    """Return the mean log-prob and the mean entropy (nats) of each problem's worked solution after its prompt.

    A problem without a solution is measured by its answer; one without either is not measured.
    """
    texts = [solution or answer for solution, answer in zip(rows["solution"], rows["answer"], strict=True)]
    found = model.logprobs(model.prompts(rows["question"], rows["messages"]), model.tokens(texts))
    return {"logp": found.mean_logp, "entropy": found.mean_entropy}


@component(
    "measure",
    by=("trace_id",),
    columns=("logp", "entropy"),
    needs=("text", "problem.question", "problem.messages"),
)
def given_likelihood(rows: Rows, model: Model) -> Mapping[str, Any]:
    """Return the mean log-prob and the mean entropy (nats) of each given text after its problem's prompt."""
    prompts = model.prompts(rows["problem.question"], rows["problem.messages"])
    found = model.logprobs(prompts, model.tokens(rows["text"]))
    return {"logp": found.mean_logp, "entropy": found.mean_entropy}


@component(
    "measure",
    paper="arXiv 2510.02227",
    by=("rollout_id",),
    columns=("score",),
    needs=("completion", "problem.question", "problem.messages", "problem.answer"),
)
def understood(rows: Rows, model: Model) -> Mapping[str, Any]:
    """Return how probable the gold answer is after the reasoning of each completion (AMPO's comprehension score).

    AMPO (arXiv 2510.02227): the mean probability of the answer's tokens after the prompt and the reasoning, as the
    authors' runs have it (their paper has exp of the mean log-prob). The reasoning is the completion up to the last
    mention of the answer, or all of it without one. The score without reasoning, which they log, is left out.
    """
    answers = rows["problem.answer"]
    reasoning = [
        (text.rpartition(answer)[0] if answer and answer in text else text)
        for text, answer in zip(rows["completion"], answers, strict=True)
    ]
    prompts = model.prompts(rows["problem.question"], rows["problem.messages"])
    contexts = [[*one, *two] for one, two in zip(prompts, model.tokens(reasoning), strict=True)]
    return {"score": model.logprobs(contexts, model.tokens(answers)).mean_prob}


@component(
    "measure",
    paper="arXiv 2506.02281",
    by=("problem_id",),
    columns=("concentration",),
    needs=("question", "messages"),
)
def angles(rows: Rows, model: Model, *, layer: int = -1) -> Mapping[str, Any]:
    """Return the mean cosine between the hidden states of two tokens of each problem's prompt (GAIN-RL).

    GAIN-RL (arXiv 2506.02281) adds the mean cosine between the question's tokens and those of a system prompt, and
    takes the input of the last layer's up-projection; here all tokens of the prompt are one set.

    Args:
        layer: 0 are the embeddings, -1 is what the last layer makes, after the final norm.
    """
    return {"concentration": model.hidden(model.prompts(rows["question"], rows["messages"]), mean_cosine, layer)}


def mean_cosine(states: Floats) -> float:
    """Return the mean cosine of two of L vectors, (L, D); 1 for one alone.

    The squared length of the sum of L unit vectors is L and twice the sum of their cosines.
    """
    num = len(states)
    units = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return 1.0 if num == 1 else float((np.square(units.sum(0, dtype=np.float64)).sum() - num) / (num * (num - 1)))
