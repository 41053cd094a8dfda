"""The reward `predicted`: the output of a program, and the values of its variables, as a completion predicts them."""

import json
from collections.abc import Mapping
from typing import Any

from gradus.components import component
from gradus.models.rewards.base import MAX_EXTRACTED_CHARS, Row, Verdict, failed, unparsed
from gradus.models.rewards.judges.programs.cases import same_output
from gradus.models.rewards.structured import answer_text, parsed

_OUTPUT, _VARIABLES = "final_output", "variables"
_FORM = 0.1
"""Part of the reward for the form alone."""


@component("reward", name="predicted", paper="arXiv 2510.18471", columns=("own_gold",), decides=True)
def judge_predicted(
    row: Row, gold: str, max_chars: int, *, key: str = "final_output", variables_key: str = "variables"
) -> Verdict:
    """0.1 + 0.9 right items / items for a prediction of what a program prints; 0 without one (CodeRL+).

    CodeRL+ (arXiv 2510.18471), as in the authors' code: the last line is JSON with `final_output` and, if the gold has
    any, `variables`; items are the output and each variable of the gold, {"final_output": "3", "variables": {"x": 1}}.
    It is the gold of the row itself (`own_gold`, from the wave `predict_outputs`), else the answer.
    Deviations: values are compared word by word, as the reward `program` compares outputs with no tolerance; a gold
    without variables asks for none.

    Args:
        row: The completion.
        gold: The gold as JSON, if the row has none of its own.
        max_chars: Longer completions are judged by their last characters.
        key: Key of the output in the JSON of a completion, as the prompt asks for it.
        variables_key: Key of the variables there.
    """
    own = row.get("own_gold")
    held = _items(parsed(own if isinstance(own, str) else gold))
    if held is None:
        return failed(f"the row has no gold that is JSON with {_OUTPUT}")
    text = answer_text(row, max_chars)
    said = None if text is None else parsed(text.rstrip().rpartition("\n")[2])
    found = _items(said, key, variables_key, named=len(held) > 1)
    if found is None:
        return unparsed()
    right = sum(name in found and _alike(found[name], value) for name, value in held.items())
    value = _FORM + (1 - _FORM) * right / len(held)
    return Verdict(value, "correct" if right == len(held) else "wrong", _written(found[None])[:MAX_EXTRACTED_CHARS])


def _items(
    stated: Any, key: str = _OUTPUT, variables: str = _VARIABLES, *, named: bool = False
) -> Mapping[str | None, Any] | None:
    """Return the output, as None, and the variables by name; None for JSON without the output or, if named, those."""
    if not isinstance(stated, dict) or key not in stated:
        return None
    held = stated.get(variables)
    if not isinstance(held, dict):
        return None if named else {None: stated[key]}
    return {None: stated[key], **held}


def _alike(found: Any, wanted: Any) -> bool:
    return same_output(_written(found), _written(wanted), 0.0)


def _written(value: Any) -> str:
    """Return a text as it is, anything else as JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        return "[...]"
