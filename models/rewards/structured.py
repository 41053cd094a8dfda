"""JSON in golds and in completions: what a row knows, what an answer states.

Golds stand in a column of the row, in a key of the JSON object `extra`, or are the answer, written as JSON. Answers are
the JSON behind the last `####` or in the last box, in the last fenced block, from the first bracket to the last, or in
the last line: the first of these that is JSON.
"""

import json
import re
from typing import Any, TypeGuard

from gradus.models.rewards.base import Row
from gradus.models.rewards.text import last_match, marked_answer, strip_invisible, visible_text

_FENCED = re.compile(r"```([A-Za-z0-9_+-]*)[ \t]*\n(.*?)```", re.DOTALL)


class _NoneError(ValueError):
    pass


def known(row: Row, gold: str, key: str) -> Any:
    """Return the gold value of a row: column `key`, key of `extra`, or the answer as JSON; None if there is none."""
    if row.get(key) is not None:
        return row[key]
    extra = row.get("extra")
    held = parsed(extra) if isinstance(extra, str) else extra
    if isinstance(held, dict) and held.get(key) is not None:
        return held[key]
    return parsed(gold)


def stated(row: Row, max_chars: int) -> Any:
    """Return the JSON that a completion states; None if there is none."""
    text = answer_text(row, max_chars)
    if text is None:
        return None
    marked, fenced = marked_answer(text, words=True), last_fenced(text)
    opening = min((at for at in (text.find("["), text.find("{")) if at >= 0), default=len(text))
    closing = max(text.rfind("]"), text.rfind("}"))
    last_line = text.rstrip().rpartition("\n")[2]
    for part in (marked, fenced, text[opening : closing + 1], last_line):
        value = None if part is None else parsed(part)
        if value is not None:
            return value
    return None


def answer_text(row: Row, max_chars: int) -> str | None:
    """Return the completion behind its thinking, without control characters; None if it never ends to think."""
    text = visible_text(row["completion"], max_chars)
    return None if text is None else strip_invisible(text)


def last_block(text: str) -> re.Match[str] | None:
    """Return the last block between fences: its first group is the language, its second the content."""
    return last_match(_FENCED, text)


def last_fenced(text: str) -> str | None:
    """Return the content of the last block between fences; None without one."""
    block = last_block(text)
    return block and block[2]


def parsed(text: str) -> Any:
    """Return what a text says as JSON, where numbers are finite and no key stands twice; None if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_numbers(value: object, length: int) -> TypeGuard[list[float]]:
    """Return whether a value of JSON is a list of `length` numbers."""
    return isinstance(value, list) and len(value) == length and all(map(is_number, value))


def _refuse(_: str) -> None:
    raise _NoneError


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _NoneError
    return found
