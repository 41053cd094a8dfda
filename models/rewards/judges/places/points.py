"""Rewards of points, spans and numbers: `point`, `span_iou`, `relative_error`, `action`."""

import math
from typing import Annotated, Any

from annotated_types import Ge, Gt

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.judges.exact import normalise, stated_answer
from gradus.models.rewards.judges.places.boxes import is_box
from gradus.models.rewards.structured import answer_text, is_number, is_numbers, known, stated


@component("reward", name="point", paper="arXiv 2505.12370", columns=("box", "extra"))
def judge_point(row: Row, gold: str, max_chars: int, *, width: Annotated[float, Ge(0.0)] = 0.0) -> Verdict:
    """1 if the stated point lies in the gold box, else exp(-d / width), d its distance to the box; 0 for a width of 0.

    SE-GUI (arXiv 2505.12370) rewards the distance continuously; with a width of 0 it is the reward of UI-R1 (arXiv
    2503.21620) and GUI-R1. The point is [x, y], or a box, of which the centre counts; the gold is `box` (a column, or
    in `extra`), or the answer as JSON. Deviation: SE-GUI's function is guessed.

    Args:
        row: The completion.
        gold: The box, if the row has none.
        max_chars: Longer completions are judged by their last characters.
        width: Distance at which the value is 1/e, in units of the coordinates.
    """
    box, said = known(row, gold, "box"), stated(row, max_chars)
    if not is_box(box):
        return failed("the row has no box: [x1, y1, x2, y2]")
    if is_box(said):
        said = [(said[0] + said[2]) / 2, (said[1] + said[3]) / 2]
    if not is_numbers(said, 2) or max(map(abs, said)) > 1e6:
        return unparsed()
    outside = (
        max(low - at, at - high, 0.0) for low, at, high in ((box[0], said[0], box[2]), (box[1], said[1], box[3]))
    )
    distance = math.hypot(*outside)
    if distance == 0 or width == 0:
        return judged(correct=distance == 0, extracted=str(said))
    return Verdict(math.exp(-distance / width), "wrong", str(said))


@component("reward", name="span_iou", paper="arXiv 2504.06958", columns=("span", "extra"))
def judge_span_iou(row: Row, gold: str, max_chars: int) -> Verdict:
    """IoU of the stated span of time with the gold one: length of the intersection over that of the union.

    VideoChat-R1 (arXiv 2504.06958), temporal grounding. Spans are [start, end]; the gold is `span` (a column, or in
    `extra`), or the answer as JSON. Between 0 and 1 it is no verdict.

    Args:
        row: The completion.
        gold: The span, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    wanted, found = known(row, gold, "span"), stated(row, max_chars)
    if not _is_span(wanted):
        return failed("the row has no span: [start, end]")
    if not _is_span(found):
        return unparsed()
    common = max(min(wanted[1], found[1]) - max(wanted[0], found[0]), 0.0)
    union = wanted[1] - wanted[0] + found[1] - found[0] - common
    return Verdict(common / union if union > 0 else float(wanted == found), extracted=str(found))


@component("reward", name="relative_error", paper="BigCharts-R1")
def judge_relative_error(row: Row, gold: str, max_chars: int, *, tolerance: Annotated[float, Gt(0.0)] = 1.0) -> Verdict:
    """R = max(0, 1 - |x - g| / (tolerance |g|)), x the stated and g the gold number.

    BigCharts-R1, whose reward falls with the relative error; its form is guessed. A gold of 0 asks for 0. Below 1 it is
    no verdict.

    Args:
        row: The completion.
        gold: The number.
        max_chars: Longer completions are judged by their last characters.
        tolerance: Relative error at which the value is 0.
    """
    wanted = _number(gold)
    if wanted is None:
        return failed(f"the gold {gold[:80]!r} is no number")
    text = answer_text(row, max_chars)
    found = None if text is None else _number(stated_answer(text) or "")
    if found is None:
        return unparsed()
    error = abs(found - wanted)
    value = float(error == 0) if wanted == 0 else max(0.0, 1 - error / (tolerance * abs(wanted)))
    return Verdict(value, extracted=f"{found:.12g}")


@component("reward", name="action", paper="arXiv 2503.21620", columns=("action", "extra"))
def judge_action(row: Row, gold: str, max_chars: int) -> Verdict:
    """Mean of two parts: the type of the action is right, and with it its place or text.

    UI-R1 (arXiv 2503.21620): R = R_type + R_coordinate. An action is {"action": type}, optionally with "point": [x, y]
    and "text"; the gold is `action` (a column, or in `extra`), or the answer as JSON, and has "box" for its
    place. Texts are compared as `exact` does. Of a right type without place and text the second part is 1. Deviation:
    the parts have a mean, not a sum; the form is a reward of its own.

    Args:
        row: The completion.
        gold: The action, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    wanted, found = known(row, gold, "action"), stated(row, max_chars)
    if not isinstance(wanted, dict) or not isinstance(wanted.get("action"), str):
        return failed('the row has no action: {"action": ..., "box": [x1, y1, x2, y2], "text": ...}')
    if not isinstance(found, dict) or not isinstance(found.get("action"), str):
        return unparsed()
    right = normalise(found["action"]) == normalise(wanted["action"])
    value = (1 + _placed(found, wanted)) / 2 if right else 0.0
    return Verdict(value, "" if 0 < value < 1 else "correct" if value else "wrong", str(found)[:1000])


def _placed(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    box, text, point, said = wanted.get("box"), wanted.get("text"), found.get("point"), found.get("text")
    if is_box(box):
        inside = is_numbers(point, 2) and box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
        if not inside:
            return 0.0
    return float(not isinstance(text, str) or (isinstance(said, str) and normalise(said) == normalise(text)))


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", "").strip(" $%"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _is_span(value: Any) -> bool:
    return is_numbers(value, 2) and all(map(is_number, value)) and max(map(abs, value)) <= 1e9 and value[0] <= value[1]
