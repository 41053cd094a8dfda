"""A filter of problems that say nearly the same as another."""

import re
import zlib
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.rows import Lists, Rows
from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.curation.results import Selection, selection

_WORD = re.compile(r"\w+")
_BANDS, _ROWS = 32, 4
"""Two texts of similarity s share a band with probability 1 - (1 - s^4)^32: 0.87 at 0.5, 1 - 5e-8 at 0.8."""
_PRIME = (1 << 31) - 1
_CHUNK = 4096
"""Texts whose hashes are permuted at once."""


@component("filter", needs=("question", "messages"))
def near_duplicates(
    candidates: Rows,
    *,
    similarity: Annotated[float, Ge(0.5), Le(1.0)] = 0.8,
    words: Annotated[int, Ge(1)] = 3,
) -> Selection:
    """Drop problems that are nearly the same as one before: MinHash (Broder, 1997) with bands, then compared exactly.

    The similarity of two texts is that of their sets of runs of `words` words, |A and B| / |A or B|, in lower case and
    without punctuation. Of those at `similarity` or above few are overlooked (at 0.8 one in 20 million, at 0.5 13 %),
    and none below it is dropped, but for equal hashes of 32 bits. A problem without a word is kept; one given as
    messages is its messages. The first stays whatever other filters say of it.

    Args:
        similarity: Lowest similarity at which the later one is dropped.
        words: Length of the runs that are compared, words.
    """
    texts = [
        question if question is not None else "\n".join(str(each["content"]) for each in messages or ())
        for question, messages in zip(candidates["question"], candidates["messages"], strict=True)
    ]
    same = repeated(_runs(texts, words), similarity)
    return selection(candidates.num_rows, [(same, f"near_duplicates: {similarity:g} like a problem before it")])


def repeated(sets: Lists, similarity: float) -> Bools:
    """Return which sets of hashes (N,) are similar to one before them that is not itself similar to one, (N,)."""
    bands = _bands(sets)
    seen: list[dict[int, list[int]]] = [{} for _ in range(_BANDS)]
    found = np.zeros(len(sets), dtype=np.bool_)
    for row in np.flatnonzero(np.diff(sets.offsets)).tolist():
        keys = bands[row].tolist()
        near = {each for band, key in zip(seen, keys, strict=True) for each in band.get(key, ())}
        found[row] = any(_jaccard(sets[row], sets[each]) >= similarity for each in near)
        if not found[row]:
            for band, key in zip(seen, keys, strict=True):
                band.setdefault(key, []).append(row)
    return found


def _runs(texts: list[str], size: int) -> Lists:
    """Return the hashes of the runs of words of each text, each once; of a shorter text that of all its words."""
    found: list[Ints] = []
    for text in texts:
        said = _WORD.findall(text.lower())
        runs = {" ".join(said[at : at + size]) for at in range(max(1, len(said) - size + 1))} if said else set[str]()
        found.append(np.unique(np.array([zlib.crc32(run.encode()) for run in runs], dtype=np.int64)))
    return Lists(np.concatenate([*found, np.zeros(0, np.int64)]), np.cumsum([0, *map(len, found)]))


def _bands(sets: Lists) -> Ints:
    """Return a hash of each band of each set's MinHash signature, (N, bands); 0 for an empty set."""
    rng = np.random.default_rng(0)  # the same permutations always
    factor, shift = (rng.integers(1, _PRIME, _BANDS * _ROWS) for _ in range(2))
    mix = rng.integers(1, _PRIME, _ROWS)
    found = np.zeros((len(sets), _BANDS), dtype=np.int64)
    filled = np.flatnonzero(np.diff(sets.offsets))
    for chosen in np.split(filled, np.arange(_CHUNK, len(filled), _CHUNK)):
        if not len(chosen):
            continue
        first, behind = sets.offsets[chosen[0]], sets.offsets[chosen[-1] + 1]
        values, starts = sets.values[first:behind] % _PRIME, sets.offsets[chosen] - first
        permuted = ((a * values + b) % _PRIME for a, b in zip(factor, shift, strict=True))
        least = np.stack([np.minimum.reduceat(each, starts) for each in permuted], 1)
        found[chosen] = (least.reshape(len(chosen), _BANDS, _ROWS) * mix % _PRIME).sum(2)
    return found


def _jaccard(one: Floats | Ints, two: Floats | Ints) -> float:
    both = len(np.intersect1d(one, two, assume_unique=True))
    return both / (len(one) + len(two) - both)
