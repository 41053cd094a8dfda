"""Texts of token ids, without torch, and how they are shown: colours by log-prob, and words that another text lacks."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from tokenizers import Tokenizer

from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, in_words, refuse
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store

MAX_TOKENS = 2000
"""Tokens above which a completion is shown as text, without colours."""
LEAST = (0.9, 0.5, 0.2, 0.05)
"""Probabilities of a token below which it is shown as ever less likely."""
TOKENIZER = "tokenizer.json"
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


Piece = tuple[str, float | None]
"""A part of a completion and the log-prob of the token that it ends with, nats; None if nobody sampled it."""
MAX_WORDS = 1500
"""Words of each text that are compared; the rest is shown without marks."""

Part = tuple[str, bool]
"""A part of a text, and whether the other text lacks it."""


@dataclass
class Tokenizers:
    """The tokenizers of a lake's policies, each loaded once."""

    store: Store
    on_damage: OnDamage = refuse
    _loaded: dict[str, Tokenizer | None] = field(default_factory=dict)

    def of(self, policy: str | None) -> Tokenizer | None:
        """Return the tokenizer of a policy; None if the policy or its tokenizer.json is not in the lake."""
        if policy is None or (ref := Ref.found(CHECKPOINTS, policy)) is None:
            return None
        if policy not in self._loaded:
            path = None
            try:
                path = self.store.file(ref, TOKENIZER) if self.store.whole(ref) else None
            except CorruptArtifactError as damage:
                self.on_damage(damage)
            self._loaded[policy] = tokenizer_of(path) if path else None
        return self._loaded[policy]


def tokenizer_of(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder; BadInputError if it has none that can be read."""
    path = folder / TOKENIZER if folder.is_dir() else folder
    if not path.is_file():
        raise BadInputError(f"{folder} has no {TOKENIZER}", hint="give the folder of the model that made the rollouts")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise BadInputError(f"{path} is no tokenizer: {in_words(error).message}") from None


def texts_of(tokenizer: Tokenizer, tokens: Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of token ids, special tokens left out."""
    return tokenizer.decode_batch([list(ids) for ids in tokens], skip_special_tokens=True)


def split(
    tokenizer: Tokenizer, text: str, tokens: Sequence[int], logprobs: Sequence[float | None]
) -> list[Piece] | None:
    """Return the pieces of a completion; None if its tokens are not its text, or too many.

    A token that ends within a character adds nothing; the piece that completes the character has the log-prob of
    its last token. Special tokens add nothing. What the last token has behind a stop string is cut off.
    """
    if len(tokens) != len(logprobs) or len(tokens) > MAX_TOKENS:
        return None
    found: list[Piece] = []
    behind, begun, length = 0, 0, 0
    for end, logprob in enumerate(logprobs, start=1):
        parts = tokens[behind:begun], tokens[behind:end]
        head, whole = (tokenizer.decode(list(part), skip_special_tokens=True) for part in parts)
        if len(whole) > len(head) and not whole.endswith(_UNFINISHED):
            piece = whole[len(head) :][: len(text) - length]
            found.append((piece, logprob))
            length += len(piece)
            behind, begun = begun, end
    return found if "".join(piece for piece, _ in found) == text else None


def doubt(logprob: float) -> int:
    """Return how many of LEAST the probability of a token is below."""
    return sum(math.exp(min(logprob, 0.0)) < least for least in LEAST)


def word_diff(left: str, right: str) -> tuple[list[Part], list[Part]]:
    """Return both texts in parts, marked where they differ; very frequent words of long texts count as different.

    >>> word_diff("2 + 2 = 5", "2 + 2 = 4")
    ([('2 + 2 = ', False), ('5', True)], [('2 + 2 = ', False), ('4', True)])
    """
    if left == right:
        return [(left, False)] if left else [], [(right, False)] if right else []
    words = [re.findall(r"\s+|[^\s]+", text) for text in (left, right)]
    compared = [each[:MAX_WORDS] for each in words]
    sides: tuple[list[Part], list[Part]] = ([], [])
    for kind, a, b, c, d in SequenceMatcher(None, compared[0], compared[1]).get_opcodes():
        _add(sides[0], compared[0][a:b], differs=kind != "equal")
        _add(sides[1], compared[1][c:d], differs=kind != "equal")
    for side, each in zip(sides, words, strict=True):
        _add(side, each[MAX_WORDS:], differs=False)
    return sides


def _add(side: list[Part], words: Sequence[str], *, differs: bool) -> None:
    if words:
        side.append(("".join(words), differs))
