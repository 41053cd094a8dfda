"""A rollout on its way in or out: what all systems have in common, and how it is read from fields of any type."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradus.data.records import Row
from gradus.data.sources.columns import is_finite
from gradus.data.sources.formats import UnusableRowError

OURS = ("problem_id", "rollout_id", "group_id", "sample", "finish_reason", "hint_level", "hint_text")
"""Fields that are written beside those of the other system, under these names, and read back."""

MAX_INT = 2**31
"""Rounds, places and token ids are below this."""


@dataclass(frozen=True)
class Exchanged:
    """One rollout with its reward; an empty id was not given."""

    prompt: str
    completion: str | None
    """None if only its reward is known."""
    round: int = 0
    problem_id: str = ""
    rollout_id: str = ""
    group_id: str = ""
    sample: int | None = None
    answer: str | None = None
    """The gold answer."""
    reward: float | None = None
    correct: bool | None = None
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    finish_reason: str | None = None
    hint_level: int = 0
    hint_text: str | None = None
    prompt_tokens: Sequence[int] | None = None
    completion_tokens: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None


def ours_of(row: Row) -> dict[str, Any]:
    """Return our own fields as a row has them; those of another type are left out."""
    found = {name: row.get(name) for name in OURS}
    numbers = {name: found.pop(name) for name in ("sample", "hint_level")}
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    return texts | {name: each for name, each in numbers.items() if type(each) is int and 0 <= each < MAX_INT}


def text_of(value: object, name: str) -> str:
    """Return a text; UnusableRowError for anything else."""
    if not isinstance(value, str):
        raise UnusableRowError(f"{name} is not a text")
    return value


def prompt_of(value: object, name: str) -> str:
    """Return a prompt that is a text or a list of turns."""
    if not isinstance(value, list):
        return text_of(value, name)
    contents = [turn.get("content") for turn in value if isinstance(turn, dict)]
    if not (texts := [text for text in contents if isinstance(text, str)]):
        raise UnusableRowError(f"{name} is neither a text nor a conversation")
    return "\n".join(texts)


def reward_of(value: object, name: str) -> float | None:
    """Return a reward; None for NaN; UnusableRowError for anything else."""
    number = number_of(value)
    if number is None and not (isinstance(value, float) and math.isnan(value)):
        raise UnusableRowError(f"{name} is not a finite number")
    return number


def number_of(value: object) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if is_finite(value) else None


def whole_of(value: object, name: str) -> int:
    """Return a whole number from 0 on, such as a step, 0 for none; UnusableRowError for anything else."""
    number = 0.0 if value is None else number_of(value)
    if number is None or not 0 <= number < MAX_INT or not number.is_integer():
        raise UnusableRowError(f"{name} is not a whole number from 0 on")
    return int(number)


def answer_of(value: object, name: str) -> str | None:
    """Return a gold answer as a text: a list of one as that one, other lists and objects as JSON; None if empty.

    UnusableRowError for a number that is not finite.
    """
    if isinstance(value, list | tuple) and len(value) == 1:
        return answer_of(value[0], name)
    if value is None or value in ("", []):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise UnusableRowError("the gold answer is not a finite number")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def tokens_of(value: object, name: str) -> list[int]:
    """Return token ids; UnusableRowError for anything else."""
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < MAX_INT for each in value):
        raise UnusableRowError(f"{name} is not a list of token ids")
    return value


def turns_of(messages: object) -> tuple[str, str]:
    """Return the texts of a conversation before its last turn, and of that turn, which must be the assistant's.

    Raise UnusableRowError if it is none, or has content other than text.
    """
    turns = messages if isinstance(messages, list) else []
    if not turns or not all(isinstance(turn, Mapping) for turn in turns):
        raise UnusableRowError("no conversation")
    *before, last = turns
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        raise UnusableRowError("the last turn is no text of the assistant")
    texts = [turn.get("content") for turn in before]
    if not all(isinstance(text, str | None) for text in texts):
        raise UnusableRowError("a turn has content other than text")
    return "\n".join(text for text in texts if text), last["content"]


READERS: Mapping[str, Callable[[object, str], Any]] = {
    "prompt": prompt_of,
    "completion": lambda value, name: turns_of(value)[1] if isinstance(value, list) else text_of(value, name),
    "round": whole_of,
    "sample": whole_of,
    "hint_level": whole_of,
    "hint_text": text_of,
    "answer": answer_of,
    "reward": reward_of,
    "correct": lambda value, _: bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None,
    "prompt_tokens": tokens_of,
    "completion_tokens": tokens_of,
    "finish_reason": lambda value, _: value if isinstance(value, str) else None,
}
"""Readers of our fields, each of a value that is there, of any type, and the name of its field."""
NEEDED = ("prompt", "completion", "prompt_tokens", "completion_tokens")
"""Fields without which a row of another system is no rollout, if its format has them."""
