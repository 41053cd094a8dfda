"""What was probably meant: the names nearest to one that does not exist."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

NUM_NAMED = 3


def nearest(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three of the known names, the likeliest first: of dotted keys those beside the wrong one, then others.

    >>> nearest("updat", ["ingest", "update", "rollout"])
    ['update']
    >>> nearest("update.lrr", ["update.lr", "update.loss", "warmup.lr", "score.max_chars"])
    ['update.lr', 'warmup.lr']
    """
    names = list(known)
    parent, _, last = wrong.rpartition(".")
    beside: dict[str, list[str]] = {}
    by_last: dict[str, list[str]] = {}
    for name in names:
        above, _, end = name.rpartition(".")
        by_last.setdefault(end, []).append(name)
        if above == parent:
            beside[end] = [name]
    found = [*_close(last, beside, 0.6), *by_last.get(last, []), *_close(last, by_last, 0.75)]
    return list(dict.fromkeys(found or get_close_matches(wrong, names, NUM_NAMED, 0.8)))[:NUM_NAMED]


def did_you_mean(wrong: str, known: Sequence[str], otherwise: str) -> str:
    """A hint with the nearest names; where nothing is near, the other hint."""
    found = nearest(wrong, known)
    return f"did you mean {' or '.join(found)}?" if found else otherwise


def _close(last: str, named: Mapping[str, list[str]], cutoff: float) -> list[str]:
    return [name for end in get_close_matches(last, named, NUM_NAMED, cutoff) for name in named[end]]
