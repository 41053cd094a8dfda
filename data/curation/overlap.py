"""Problems that share text with evaluated ones: runs of words, and whole texts.

Words are as in the decontamination of GPT-3 (arXiv 2005.14165, appendix C) and of lm-evaluation-harness: lower case,
without punctuation, between white space.
"""

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Column, Ints, bools, codes, ints, nulls, one_array, pc, positions, ragged

WORDS = 13
"""Length of the runs that are compared, words."""
COMMON = 10
"""A run in more problems than these is a template and no sign: GPT-3's limit."""
_CHUNK_CHARS = 1 << 24
"""Characters of the texts whose words are compared at once."""


def texts_of(problems: pa.Table) -> pa.Array:
    """Return the question of each problem, that of its messages where there is none; null where there are neither."""
    found = one_array(problems.column("question"))
    if found.null_count and "messages" in problems.column_names:
        messages = one_array(problems.column("messages"))
        if messages.null_count == len(messages):
            return found
        offsets, turns = ragged(messages)
        contents = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), turns.field("content"))
        joined = pc.binary_join(contents, "\n")
        found = pc.coalesce(found, pc.if_else(pa.array(np.diff(offsets) > 0), joined, pa.scalar(None, pa.string())))
    return found


def whole_texts(texts: Column) -> pa.Array:
    """Return texts without case and spaces, by which the same problem is recognised."""
    return one_array(pc.replace_substring_regex(pc.utf8_lower(texts), pattern=r"\s+", replacement=""))


def contaminated(texts: Column, evaluated: Column, *, words: int = WORDS, common: int = COMMON) -> Bools:
    """Return which texts (N,) share `words` words in a row with an evaluated one, or are the same as one.

    A run in more than `common` of the texts is left aside (0: none is). Texts are the same without case and spaces;
    those of fewer words are found in no other way, as their punctuation may be all that distinguishes 5 - 3 from 5 + 3.
    Time and memory are linear in the text, at most `common` numbers are kept for each evaluated word, and no result
    depends on hashes.
    Deviations: GPT-3 cuts a window of 200 characters out of a document, here it counts whole; symbols and all
    punctuation of Unicode are removed. Scripts without spaces have few words.
    """
    kept, known = one_array(texts), whole_texts(evaluated).drop_null()
    same = bools(pc.is_in(whole_texts(kept), value_set=known.filter(pc.not_equal(known, ""))))
    return same | _sharing(kept, _Runs(one_array(evaluated).unique(), words), common)


class _Runs:
    """The runs of words of the evaluated texts, numbered from 0."""

    def __init__(self, evaluated: pa.Array, words: int) -> None:
        said, row = _words(evaluated)
        number, self._vocabulary = codes(said)
        runs, size = _between(number, row), 1
        self._steps: list[tuple[int, Ints, int]] = []
        while size < words:  # two runs make a longer one, which overlap in the last step
            apart = min(size, words - size)
            keys = _pairs(runs, apart, len(runs))
            known, inverse = np.unique(keys[keys >= 0], return_inverse=True)
            self._steps.append((apart, known, len(runs)))
            runs = np.full(len(keys), -1, np.int64)
            runs[keys >= 0] = inverse.reshape(-1)
            size += apart
        self.num = int(runs.max(initial=-1)) + 1

    def of(self, texts: pa.Array) -> tuple[Ints, Ints]:
        """Return the evaluated runs in some texts and the number of the text of each, (K,) both, each pair once."""
        said, row = _words(texts)
        runs = _between(positions(said, self._vocabulary), row)
        rows = _between(row, row)
        for apart, known, factor in self._steps:
            runs = _places(_pairs(runs, apart, factor), known)
        found = np.flatnonzero(runs >= 0)
        pairs = np.unique(rows[found] * max(1, self.num) + runs[found])
        return pairs % max(1, self.num), pairs // max(1, self.num)


def _sharing(texts: pa.Array, runs: _Runs, common: int) -> Bools:
    """Return which texts (N,) have an evaluated run that at most `common` of them have; 0 takes any."""
    found = np.zeros(len(texts), dtype=np.bool_)
    if not runs.num:
        return found
    count = np.zeros(runs.num, dtype=np.int64)
    kept_run, kept_row = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for start, behind in _chunks(texts):
        run, row = runs.of(texts.slice(start, behind - start))
        if not common:
            found[row + start] = True
            continue
        count += np.bincount(run, minlength=runs.num)
        kept_run, kept_row = np.concatenate((kept_run, run)), np.concatenate((kept_row, row + start))
        rare = count[kept_run] <= common
        kept_run, kept_row = kept_run[rare], kept_row[rare]
    found[kept_row] = True
    return found


def _words(texts: pa.Array) -> tuple[pa.Array, Ints]:
    """Return the words of texts end to end, and the number of the text of each, (M,) both."""
    plain = pc.replace_substring_regex(pc.utf8_lower(texts), pattern=r"[\pP\pS]+", replacement="")
    split = one_array(pc.utf8_split_whitespace(plain))
    words, row = split.flatten(), ints(pc.list_parent_indices(split))
    said = pc.not_equal(words, "")
    return words.filter(said), row[bools(said)]


def _between(values: Ints, row: Ints) -> Ints:
    """Return the values of words with -1 between texts, so that no run goes from one into the next."""
    ends = np.flatnonzero(np.diff(row)) + 1
    return np.insert(values, ends, -1)


def _pairs(runs: Ints, apart: int, factor: int) -> Ints:
    """Return a number for each run with the one that begins `apart` words behind it; -1 where one is none."""
    one, two = runs[: max(0, len(runs) - apart)], runs[apart:]
    return np.where((one >= 0) & (two >= 0), one * factor + two, -1)


def _places(keys: Ints, known: Ints) -> Ints:
    """Return the place of each key in sorted ones; -1 if it is not there."""
    found = np.full(len(keys), -1, np.int64)
    asked = np.flatnonzero(keys >= 0)
    if len(known) and len(asked):
        at = np.minimum(np.searchsorted(known, keys[asked]), len(known) - 1)
        found[asked] = np.where(known[at] == keys[asked], at, -1)
    return found


def _chunks(texts: pa.Array) -> list[tuple[int, int]]:
    """Return the ranges of texts of about _CHUNK_CHARS each; a longer text is one by itself."""
    lengths = np.where(nulls(texts), 0, ints(pc.utf8_length(texts)))
    total = np.cumsum(lengths)
    bounds = np.flatnonzero(np.diff(total // _CHUNK_CHARS, prepend=0))
    edges = np.unique(np.concatenate(([0], bounds, [len(texts)])))
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
