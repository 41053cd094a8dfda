"""Validation errors of settings as sentences: the key, the fault, and the nearest names to an unknown one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gradus.components.chosen import Chosen
from gradus.components.registry import components
from gradus.components.settings import models_in
from gradus.data.errors import UsageError, shortened
from gradus.data.nearest import did_you_mean

M = TypeVar("M", bound=BaseModel)

_MORE = "`gradus settings` says more"
_SCHEDULED = 'in a recipe a schedule is written { schedule = "linear", ... }'
_BRANCHES = frozenset({"float", "int", "str", "bool", "list[int]", "[key]"})
"""Names that pydantic writes behind a key for each type that its value could have."""
_LISTED = ("literal[", "tuple[")
"""Beginnings of such names, for words and for lists."""
_MUST_BE = {
    kind: words
    for words, kinds in {
        "a list": ("tuple_type", "list_type"),
        "a table": ("dict_type", "mapping_type"),
        "a table of settings": ("model_type", "model_attributes_type"),
        "a whole number": ("int_type", "int_parsing", "int_from_float"),
        "a whole number of at most 64 bits": ("int_parsing_size",),
        "a number": ("float_type", "float_parsing"),
        "a finite number": ("finite_number",),
        "true or false": ("bool_type", "bool_parsing"),
        "text": ("string_type", "string_unicode"),
    }.items()
    for kind in kinds
}
"""Types that pydantic's type errors require."""
_SAID = {
    "missing": "it is missing",
    "string_pattern_mismatch": "it does not match {pattern}",
    "too_short": "it has too few entries",
    "too_long": "it has too many entries",
}
"""Meaning of pydantic's other types of errors."""

_ELSEWHERE = {"learning_rate": "lr", "beta": "kl_coef", "num_generations": "n", "max_completion_length": "max_tokens"}
"""Names of TRL's settings, and ours for them."""


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every setting of a model as a dotted key.

    A list has the keys of its first entry (`rewards.0.weight`), a table of names those of an entry `NAME`, a component
    the settings of every registered one (`update.loss.clip_high`).
    """
    if issubclass(model, Chosen):
        registered = (each.settings.model_fields for each in components(model.kind).values())
        yield from (f"{prefix}{name}" for name in dict.fromkeys(chain.from_iterable(registered)))
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for inner, entry in models_in(field.annotation):
            yield from settings_of(inner, f"{prefix}{name}.{entry}")


def valid(model: type[M], body: Mapping[str, object], origin: str = "") -> M:
    """Return settings from plain values; UsageError describes the first invalid one."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise refusal(error, origin, list(settings_of(model))) from None


def refusal(error: ValidationError, origin: str, known: Sequence[str], aliases: Mapping[str, str] = {}) -> UsageError:
    """Return validation errors as one sentence, with the nearest names for an unknown key or name.

    `aliases` maps the beginning of a key to what stands for it in the user's own file.
    """
    faults: dict[str, list[ErrorDetails]] = {}
    for fault in error.errors():
        faults.setdefault(_key(fault), []).append(fault)
    several = [_refusal(same, _as_written(key, aliases), known) for key, same in faults.items()]
    before = f"{origin}: " if origin else ""
    if len(several) == 1:
        return UsageError(before + several[0].message, hint=several[0].hint)
    near = [f" ({each.hint})" if each.hint.startswith("did you mean") else "" for each in several]
    listed = "; ".join(each.message + hint for each, hint in zip(several, near, strict=True))
    return UsageError(f"{before}{len(several)} settings are wrong: {listed}", hint=_MORE)


def _as_written(key: str, aliases: Mapping[str, str]) -> str:
    for beginning, written in aliases.items():
        if f"{key}.".startswith(f"{beginning}."):
            return written + key.removeprefix(beginning)
    return key


def _refusal(faults: Sequence[ErrorDetails], key: str, known: Sequence[str]) -> UsageError:
    """Return the error of one key: the fault under each type that its value could have."""
    first, at = faults[0], f"{key}: " if key else ""
    match first["type"]:
        case "extra_forbidden":
            known = [_beside(key, name) for name in known]
            hint = _called_elsewhere(key, known) or did_you_mean(key, known, _listed(key, known))
            return UsageError(f"there is no setting {key}", hint=hint)
        case "no_component" | "no_setting":
            return _no_such_component(first, key)
        case "literal_error":
            return _no_such_name(first, at)
        case "value_error":
            return UsageError(at + first["msg"].removeprefix("Value error, "))
        case _:
            is_table = isinstance(first["input"], Mapping) and "number" in _MUST_BE.get(first["type"], "")
            return UsageError(at + _asked(faults), hint=_SCHEDULED if is_table else _MORE)


def _beside(key: str, name: str) -> str:
    """Return a known setting with the entry of a list or table in which the key stands, not 0 or NAME."""
    parts, of_key = name.split("."), key.split(".")
    for at, (part, said) in enumerate(zip(parts, of_key, strict=False)):
        if part not in (said, "NAME", "0" if said.isdecimal() else said):
            break
        parts[at] = said
    return ".".join(parts)


def _called_elsewhere(key: str, known: Sequence[str]) -> str:
    """Return a hint for a setting by the name that other systems have for it; empty if there is none."""
    above, dot, name = key.rpartition(".")
    ours = f"{above}{dot}{_ELSEWHERE.get(name, '')}"
    return f"did you mean {ours}?" if ours in known else ""


def _key(fault: ErrorDetails) -> str:
    parts = [str(part) for part in fault["loc"] if not str(part).startswith(_LISTED)]
    return ".".join(parts[:-1] if parts and parts[-1] in _BRANCHES else parts)


def _no_such_component(fault: ErrorDetails, key: str) -> UsageError:
    """Return the error for an unknown component, or for a setting that it does not have."""
    facts = fault.get("ctx", {})
    known: list[str] = list(facts.get("known", ()))
    if fault["type"] == "no_setting":
        listed = f"its settings are {', '.join(known)}" if known else "it has no settings"
        hint = did_you_mean(key.rpartition(".")[2], known, listed)
        return UsageError(f"there is no setting {key} ({facts['kind']} {facts['name']})", hint=hint)
    listed = f"it is one of {', '.join(known)}, or path/to/file.py:function"
    at = f"{key.removesuffix('.name')}: " if key != "name" else ""
    hint = did_you_mean(facts["name"], known, listed)
    return UsageError(f"{at}there is no {facts['kind']} {shortened(facts['name'])!r}", hint=hint)


def _no_such_name(fault: ErrorDetails, at: str) -> UsageError:
    allowed = list(filter(None, re.findall(r"'([^']*)'", fault.get("ctx", {}).get("expected", ""))))
    if not isinstance(given := fault["input"], str):
        return UsageError(f"{at}it must be a name", hint=f"it is one of {', '.join(allowed)}")
    return UsageError(f"{at}there is no {shortened(given)!r}", hint=did_you_mean(given, allowed))


def _asked(faults: Sequence[ErrorDetails]) -> str:
    """Return the types that a value could have, in words."""
    kinds = [fault["type"] for fault in faults]
    if "finite_number" in kinds:
        return "it must be a finite number"
    if kinds[0] in _SAID:
        return _SAID[kinds[0]].format(**faults[0].get("ctx", {}))
    if not all(kind in _MUST_BE for kind in kinds):
        return re.sub(r"^\w+ should", "it must", faults[0]["msg"])
    wanted = list(dict.fromkeys(_MUST_BE[kind] for kind in kinds))
    return f"it must be {' or '.join(word for word in wanted if 'number' not in word or word == wanted[0])}"


def _listed(key: str, known: Sequence[str]) -> str:
    """Return the settings at the level of an unknown key."""
    parent = key.rpartition(".")[0]
    there = [name.rpartition(".") for name in known]
    listed = ", ".join(dict.fromkeys(last for above, _, last in there if above == parent))
    return f"the settings{' of ' + parent if parent else ''} are {listed}"
