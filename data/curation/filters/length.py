"""Filters on how long the question is: in characters or words, or as a prompt in tokens of a policy."""

from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import Column, Ints, ints, nulls, one_array, pc
from gradus.data.curation.candidates import PROMPT_TOKENS
from gradus.data.curation.results import Selection, selection
from gradus.data.errors import BadInputError, UsageError


@component("filter", needs=("question", "messages"))
def length(
    candidates: Rows, *, low: float = 0.0, high: float = 0.0, unit: Literal["chars", "words"] = "chars"
) -> Selection:
    """Keep problems of low to high characters (or words: runs of non-space), both included; high = 0 sets no ceiling.

    A problem given as messages is as long as its messages together.

    Args:
        low: Shortest question that is kept.
        high: Longest question that is kept; 0 for any.
        unit: chars or words.
    """
    if high and low > high:
        raise UsageError(f"length: low={low:g} is above high={high:g}, which keeps nothing")
    lengths = question_lengths(candidates, unit)
    too_long = lengths > high if high else np.zeros(len(lengths), dtype=np.bool_)
    return selection(
        candidates.num_rows,
        [(lengths < low, f"length: below {low:g} {unit}"), (too_long, f"length: above {high:g} {unit}")],
    )


@component("filter", needs=("prompt_tokens",))
def prompt_tokens(candidates: Rows, *, low: Annotated[int, Ge(0)] = 0, high: Annotated[int, Ge(1)]) -> Selection:
    """Keep problems whose prompt, without a hint, has low to high tokens of the policy, both included.

    In a training the policy that it starts from counts, otherwise that of `--policy`.

    Args:
        low: Shortest prompt that is kept, tokens.
        high: Longest prompt that is kept, tokens.
    """
    if low > high:
        raise UsageError(f"prompt_tokens: low={low} is above high={high}, which keeps nothing")
    if PROMPT_TOKENS not in candidates:
        raise BadInputError(
            "the filter prompt_tokens counts tokens of a policy, and none is given", hint="give --policy"
        )
    lengths = candidates[PROMPT_TOKENS]
    return selection(
        candidates.num_rows,
        [(lengths < low, f"prompt_tokens: below {low}"), (lengths > high, f"prompt_tokens: above {high}")],
    )


def question_lengths(problems: Rows, unit: str) -> Ints:
    """Length of each question (N,), in Unicode characters or words; that of the messages where there is none."""
    question = problems.arrow("question")
    lengths = _text_lengths(question, unit)
    if (without := nulls(question)).any():
        messages = one_array(problems.arrow("messages"))
        contents = messages.flatten().field("content")
        row = ints(pc.list_parent_indices(messages))
        total = np.bincount(row, weights=_text_lengths(contents, unit), minlength=problems.num_rows)
        lengths = np.where(without, total.astype(np.int64), lengths)
    return lengths


def _text_lengths(texts: Column, unit: str) -> Ints:
    return ints(pc.utf8_length(texts) if unit == "chars" else pc.count_substring_regex(texts, r"\S+"))
