"""A filter on how long the question is.

Left out: lengths in a policy's own tokens, which the problems table does not know; words stand in for them.
"""

from typing import Literal

import numpy as np
import pyarrow as pa

from gradus.components import component
from gradus.data.arrays import Column, Ints, ints, nulls, one_array, pc
from gradus.data.curation.filters.verdict import Selection, selection
from gradus.data.errors import UsageError


@component("filter")
def length(
    candidates: pa.Table, *, low: float = 0.0, high: float = 0.0, unit: Literal["chars", "words"] = "chars"
) -> Selection:
    """Keep problems of low to high characters (or words: runs of non-space), both included; high = 0 sets no ceiling.

    A problem given as messages is as long as its messages together.

    Args:
        candidates: Problems with their questions.
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


def question_lengths(problems: pa.Table, unit: str) -> Ints:
    """Length of each question (N,), in Unicode characters or words; that of the messages where there is none."""
    question = problems.column("question")
    lengths = _text_lengths(question, unit)
    without = nulls(question)
    if without.any():
        messages = one_array(problems.column("messages"))
        contents = messages.flatten().field("content")
        row = ints(pc.list_parent_indices(messages))
        total = np.bincount(row, weights=_text_lengths(contents, unit), minlength=problems.num_rows)
        lengths = np.where(without, total.astype(np.int64), lengths)
    return lengths


def _text_lengths(texts: Column, unit: str) -> Ints:
    return ints(pc.utf8_length(texts) if unit == "chars" else pc.count_substring_regex(texts, r"\S+"))
