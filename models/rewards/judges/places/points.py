"""Rewards of points, spans and numbers: `point`, `span_iou`, `relative_error`, `action`, `attended`."""

import math
from itertools import combinations
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.judges.exact import normalise, stated_answer
from gradus.models.rewards.judges.places.boxes import iou, is_box
from gradus.models.rewards.structured import answer_text, is_number, is_numbers, known, parsed, stated

_MOST_REGIONS = 100
"""Regions beyond this number are no attention, and would take a time quadratic in it."""


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
def judge_action(
    row: Row,
    gold: str,
    max_chars: int,
    *,
    whole: bool = False,
    least_f1: Annotated[float, Gt(0.0), Le(1.0)] | None = None,
) -> Verdict:
    """Mean of two parts: the type of the action is right, and with it its place or text.

    UI-R1 (arXiv 2503.21620): R = R_type + R_coordinate. An action is {"action": type}, optionally with "point": [x, y]
    and "text"; the gold is `action` (a column, or in `extra`), or the answer as JSON, and has "box" for its
    place. Texts are compared as `exact` does. Of a right type without place and text the second part is 1. Deviation:
    the parts have a mean, not a sum; the form is a reward of its own. With `whole` it is 1 if both parts are, else 0,
    as in GUI-R1 (arXiv 2504.10458) and BTL-UI (arXiv 2509.15566), which take texts from an F1 of 0.5 on.

    Args:
        row: The completion.
        gold: The action, if the row has none.
        max_chars: Longer completions are judged by their last characters.
        whole: True if a right type alone is worth nothing.
        least_f1: F1 of the words of a text from which it is right; none compares texts as a whole.
    """
    wanted, found = known(row, gold, "action"), stated(row, max_chars)
    if not isinstance(wanted, dict) or not isinstance(wanted.get("action"), str):
        return failed('the row has no action: {"action": ..., "box": [x1, y1, x2, y2], "text": ...}')
    if not isinstance(found, dict) or not isinstance(found.get("action"), str):
        return unparsed()
    right = normalise(found["action"]) == normalise(wanted["action"])
    value = (1 + _placed(found, wanted, least_f1)) / 2 if right else 0.0
    value = float(value == 1) if whole else value
    return Verdict(value, "" if 0 < value < 1 else "correct" if value else "wrong", str(found)[:1000])


@component("reward", name="attended", paper="arXiv 2509.15566", columns=("action", "extra"))
def judge_attended(
    row: Row,
    gold: str,
    max_chars: int,  # noqa: ARG001 - the regions stand before the thinking
    *,
    opening: str = "<blink>",
    closing: str = "</blink>",
    least: Annotated[float, Ge(0.0), Le(1.0)] = 0.5,
) -> Verdict:
    """1 if one of the regions that a completion names first is that of the action, and none overlaps another.

    BTL-UI (arXiv 2509.15566), the blink reward of the authors' code: an IoU above `least` with the gold box, and no two
    regions with an IoU of `least` or more; 1 for an action without a box. Regions are a JSON list of boxes between the
    two tags; the gold is that of `action`. It says nothing about correctness. Deviation: regions are bare boxes.

    Args:
        row: The completion.
        gold: The action, if the row has none.
        max_chars: Not read.
        opening: Text before the regions.
        closing: Text behind them.
        least: IoU above which a region is the box, and from which two regions are one.
    """
    wanted = known(row, gold, "action")
    if not isinstance(wanted, dict):
        return failed('the row has no action: {"action": ..., "box": [x1, y1, x2, y2]}')
    box = wanted.get("box")
    if not is_box(box):
        return Verdict(1.0)
    said = parsed(row["completion"].partition(opening)[2].partition(closing)[0])
    if not isinstance(said, list) or len(said) > _MOST_REGIONS or not all(map(is_box, said)):
        return Verdict(0.0)
    apart = all(iou(one, other) < least for one, other in combinations(said, 2))
    return Verdict(float(apart and any(iou(one, box) > least for one in said)))


def _placed(found: dict[str, Any], wanted: dict[str, Any], least_f1: float | None) -> float:
    box, text, point, said = wanted.get("box"), wanted.get("text"), found.get("point"), found.get("text")
    if is_box(box):
        inside = is_numbers(point, 2) and box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]
        if not inside:
            return 0.0
    if not isinstance(text, str):
        return 1.0
    if not isinstance(said, str):
        return 0.0
    if least_f1 is None:
        return float(normalise(said) == normalise(text))
    return float(_f1(set(normalise(said).split()), set(normalise(text).split())) >= least_f1)


def _f1(said: set[str], wanted: set[str]) -> float:
    return 2 * len(said & wanted) / max(len(said) + len(wanted), 1)


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", "").strip(" $%"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _is_span(value: Any) -> bool:
    return is_numbers(value, 2) and all(map(is_number, value)) and max(map(abs, value)) <= 1e9 and value[0] <= value[1]
