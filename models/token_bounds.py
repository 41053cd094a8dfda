"""Characters of a completion that each of its tokens holds.

    starts, ends = token_bounds(tokenizer, tokens, text)      text[starts[i] : ends[i]] is what token i holds

A character whose bytes several tokens share is held by each of them; a special token, or one behind a stop string,
which the text leaves out, holds none.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from gradus.models.policy import completion_texts

_STRIDE = 64
"""Tokens whose beginnings are decoded together: all of them from the start would cost the square of their number."""
_CONTEXT = 8
"""Tokens before them that are decoded with them, since the first token of a text may lose its space."""

Ints = npt.NDArray[np.int64]


def token_bounds(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], text: str) -> tuple[Ints, Ints]:
    """Return the first character of each token and the one behind its last, (T,) each, neither of them falling.

    `text` is what the tokens decode to without special tokens, or a beginning of that.
    """
    num = len(tokens)
    whole, cut = np.zeros(num + 1, np.int64), np.zeros(num + 1, np.bool_)
    anchor, base = 0, 0  # the characters before `base` are of the tokens before `anchor`
    for begin in range(0, num, _STRIDE):
        ends = range(begin + 1, min(begin + _STRIDE, num) + 1)
        found = completion_texts(tokenizer, [tokens[anchor:end] for end in ends])
        for end, decoded in zip(ends, found, strict=True):
            whole[end], cut[end] = _settled(text, base, decoded)
        complete = [end for end in ends if not cut[end]]
        if complete and (known := complete[-1]) > _CONTEXT:
            (context,) = completion_texts(tokenizer, [tokens[known - _CONTEXT : known]])
            before = int(whole[known]) - len(context)
            if before >= 0 and text[before : whole[known]] == context and known < num:
                anchor, base = known - _CONTEXT, before
    whole = np.maximum.accumulate(whole)
    starts, ends_ = whole[:-1], whole[1:] + cut[1:]
    return starts, np.maximum.accumulate(np.maximum(ends_, starts))


def _settled(text: str, base: int, decoded: str) -> tuple[int, bool]:
    """Return how many characters are complete once `decoded` stands behind `base`, and whether a further one is cut."""
    if text.startswith(decoded, base):
        return base + len(decoded), False
    alike = zip(text[base : base + len(decoded)], decoded, strict=False)
    known = next((at for at, (ours, theirs) in enumerate(alike, base) if ours != theirs), len(text))
    return known, known < len(text)
