"""What was probably meant: the names nearest to one that does not exist, and the settings of a model as dotted keys."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from data.errors import UsageError

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


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every setting of a model as a dotted key; of a list that of its first entry (`rewards.0.weight`)."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for inner, is_list in _models_in(field.annotation):
            yield from settings_of(inner, f"{prefix}{name}.{'0.' if is_list else ''}")


def refusal(error: ValidationError, origin: str, known: Sequence[str], aliases: Mapping[str, str] = {}) -> UsageError:
    """The first fault of settings in a sentence; for a key that does not exist the nearest that do.

    `aliases` maps the beginning of a key to what stands for it in the user's own file.
    """
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    for beginning, written in aliases.items():
        if f"{key}.".startswith(f"{beginning}."):
            key = written + key.removeprefix(beginning)
    if first["type"] == "extra_forbidden":
        return UsageError(f"{origin}: there is no setting {key}", hint=did_you_mean(key, known, _listed(key, known)))
    where = f"{origin}: {key}" if key else origin
    hint = "" if first["type"] == "value_error" else "`gradus methods` says more"
    return UsageError(f"{where}: {first['msg'].removeprefix('Value error, ')}", hint=hint)


def _listed(key: str, known: Sequence[str]) -> str:
    """The settings that stand where a key was looked for."""
    parent = key.rpartition(".")[0]
    there = [name.rpartition(".") for name in known]
    listed = ", ".join(dict.fromkeys(last for above, _, last in there if above == parent))
    return f"the settings{' of ' + parent if parent else ''} are {listed}"


def _close(last: str, named: Mapping[str, list[str]], cutoff: float) -> list[str]:
    return [name for end in get_close_matches(last, named, NUM_NAMED, cutoff) for name in named[end]]


def _models_in(annotation: Any, *, is_list: bool = False) -> Iterator[tuple[type[BaseModel], bool]]:
    """The models that an annotation holds, and whether in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, is_list
    for inner in get_args(annotation):
        yield from _models_in(inner, is_list=is_list or getattr(annotation, "__origin__", None) is tuple)
