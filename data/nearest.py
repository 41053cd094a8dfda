"""Suggestions for a mistyped name: the nearest existing names, and the one that a beginning stands for."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from gradus.data.errors import UsageError, shortened

NUM_NAMED = 3
_MAX_CHARS = 200
"""No name is near a longer word, for which the comparison takes its time."""


def nearest(wrong: str, known: Iterable[str]) -> list[str]:
    """At most three of the known names, the likeliest first: of dotted keys those beside the wrong one, then others.

    Of keys that end alike the least nested are meant.

    >>> nearest("updat", ["ingest", "update", "rollout"])
    ['update']
    >>> nearest("update.lrr", ["update.lr", "update.loss", "warmup.lr", "score.max_chars"])
    ['update.lr', 'warmup.lr']
    """
    if len(wrong) > _MAX_CHARS:
        return []
    names = list(known)
    parent, _, last = wrong.rpartition(".")
    beside: dict[str, list[str]] = {}
    shallowest: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: name.count(".")):
        above, _, end = name.rpartition(".")
        same = shallowest.setdefault(end, [])
        if not same or same[0].count(".") == name.count("."):
            same.append(name)
        if above == parent:
            beside[end] = [name]
    found = [*_close(last, beside, 0.65), *shallowest.get(last, []), *_close(last, shallowest, 0.75)]
    return list(dict.fromkeys(found or get_close_matches(wrong, names, NUM_NAMED, 0.8)))[:NUM_NAMED]


def did_you_mean(wrong: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint with the nearest names; if none is near `otherwise`, or all names."""
    names = list(known)
    found = nearest(wrong, names)
    return f"did you mean {' or '.join(found)}?" if found else otherwise or f"it is one of {', '.join(names)}"


def unique(beginning: str, known: Iterable[str], what: str, otherwise: str) -> str:
    """Return the known name, or the only one with this prefix; raise UsageError with candidates or the nearest names.

    >>> unique("demo-1", ["demo-1a2b", "demo-2c3d", "tiny-78df"], "run", "list them")
    'demo-1a2b'
    """
    names = sorted(known)
    found = [name for name in names if name.startswith(beginning)] if beginning else []
    if beginning in found:
        return beginning
    if not found:
        raise UsageError(f"there is no {what} {shortened(beginning)}", hint=did_you_mean(beginning, names, otherwise))
    if len(found) > 1:
        more = f" ... ({len(found)} in all)" if len(found) > NUM_NAMED else ""
        message = f"several {what}s begin with {beginning}: {', '.join(found[:NUM_NAMED])}{more}"
        raise UsageError(message, hint="write more of the name")
    return found[0]


def _close(last: str, named: Mapping[str, list[str]], cutoff: float) -> list[str]:
    return [name for end in get_close_matches(last, named, NUM_NAMED, cutoff) for name in named[end]]
