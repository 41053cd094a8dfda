"""The reward `tool_calls`: how near the calls of tools in a completion are to those that were expected."""

from collections.abc import Mapping
from typing import Any, TypeGuard

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.judges.texts.rouge_l import plain_words, rouge_l
from gradus.models.rewards.structured import answer_text, known, stated

Call = Mapping[str, Any]


@component("reward", name="tool_calls", paper="STAR (Qwen-Applications)", columns=("calls", "tools", "extra"))
def judge_tool_calls(row: Row, gold: str, max_chars: int, *, invalid: float = -1.0) -> Verdict:
    """Soft IoU of calls: r = sum_j sim(a_j, b_j) / (unmatched b + number of a), b_j the most similar call left.

    STAR's Sim-RL, by the authors' code: sim is the sum over shared arguments of ROUGE-L of two texts, or equality of
    other values, over the number of arguments that either has. Calls of other tools are not similar. If no call is
    expected, the value is ROUGE-L of the reply to the answer, or 0 if there are calls; it is `invalid` for calls that
    cannot be read, or of tools and arguments that `tools` does not have. `calls` and `tools` are columns, or keys of
    `extra`: a list of {"name", "arguments"}, and the arguments of each tool, {name: [argument, ...]}. Between 0 and 1
    it is no verdict.

    Args:
        row: The completion, with calls as a JSON list, or as one object.
        gold: The expected calls, if the row has none, or the expected reply.
        max_chars: Longer completions are judged by their last characters.
        invalid: Value of calls that are none.
    """
    expected, tools = known(row, gold, "calls"), known(row, "", "tools")
    if expected is None and gold:
        expected = []
    if not _are_calls(expected):
        return failed('the row has no calls: a list of {"name": ..., "arguments": {...}}')
    said, text = stated(row, max_chars), answer_text(row, max_chars)
    calls = [said] if isinstance(said, dict) else said
    if calls is None:
        if not expected:
            return Verdict(rouge_l(plain_words(text or ""), plain_words(gold)))
        return Verdict(invalid if text and "{" in text else 0.0, "wrong")
    if not _are_calls(calls) or (isinstance(tools, dict) and not all(_allowed(call, tools) for call in calls)):
        return Verdict(invalid, "wrong")
    return Verdict(soft_iou(calls, expected))


def soft_iou(calls: list[Call], expected: list[Call]) -> float:
    """Return the soft IoU of two lists of calls; 1 if both are empty."""
    left, total = list(expected), 0.0
    for call in calls:
        alike = [(_similarity(call, other), -at) for at, other in enumerate(left) if other["name"] == call["name"]]
        if alike:
            similarity, at = max(alike)
            total += similarity
            del left[-at]
    number = len(left) + len(calls)
    return total / number if number else 1.0


def _similarity(call: Call, other: Call) -> float:
    ours, theirs = call.get("arguments") or {}, other.get("arguments") or {}
    keys = ours.keys() | theirs.keys()
    shared = sum(_same(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return shared / len(keys) if keys else 1.0


def _same(one: Any, other: Any) -> float:
    if isinstance(one, str) and isinstance(other, str):
        return 1.0 if one == other else rouge_l(plain_words(one), plain_words(other))
    return float(type(one) is type(other) and one == other)


def _are_calls(calls: Any) -> TypeGuard[list[Call]]:
    return isinstance(calls, list) and all(
        isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments") or {}, dict)
        for call in calls
    )


def _allowed(call: Call, tools: Mapping[str, Any]) -> bool:
    return call["name"] in tools and set(call.get("arguments") or {}) <= set(tools[call["name"]])
