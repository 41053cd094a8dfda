"""Stop strings, looked for in the text of a completion's last tokens, so that a step costs the same however long it is.

A completion ends with the first token that completes one of them. Special tokens are not text.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from gradus.models.policy import completion_texts

MARGIN_TOKENS = 8
"""Tokens beyond those that a stop string can have: some tokens are not text, and the first may lose a space."""


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
