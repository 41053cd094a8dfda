"""Rewards of boxes: `box_iou` of one, `boxes` of several, matched to those of the gold, `detections` by their mAP."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeGuard

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, unparsed
from gradus.models.rewards.structured import is_numbers, known, stated

Box = Sequence[float]
"""x1, y1, x2, y2 with x1 <= x2 and y1 <= y2."""
THRESHOLDS = tuple(twentieths / 20 for twentieths in range(10, 20))
"""Least IoU of a hit, from COCO."""


@component("reward", name="box_iou", paper="arXiv 2504.07615", columns=("box", "extra"))
def judge_box_iou(row: Row, gold: str, max_chars: int) -> Verdict:
    """IoU of the stated box with the gold one: area of the intersection over that of the union.

    VLM-R1 (arXiv 2504.07615), referring expressions. Boxes are [x1, y1, x2, y2]; the gold is `box` (a column, or in
    `extra`), or the answer as JSON. Between 0 and 1 it is no verdict.

    Args:
        row: The completion.
        gold: The box, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    wanted, found = known(row, gold, "box"), stated(row, max_chars)
    if not is_box(wanted):
        return failed("the row has no box: [x1, y1, x2, y2]")
    return Verdict(iou(found, wanted), extracted=str(found)) if is_box(found) else unparsed()


@component("reward", name="boxes", paper="arXiv 2504.07954", columns=("boxes", "extra"), libraries=("scipy",))
def judge_boxes(
    row: Row, gold: str, max_chars: int, *, least: Annotated[float, Ge(0.0), Le(1.0)] = 0.0, excess: bool = True
) -> Verdict:
    """Mean IoU of gold boxes with the stated ones that a best matching assigns to them.

    Perception-R1 (arXiv 2504.07954): boxes are matched one to one so that the sum of IoUs is largest (Hungarian
    algorithm); a gold box without a partner counts 0. With `excess` the value is multiplied by min(1, gold / stated),
    the length factor of VLM-R1's detection reward. The gold is `boxes` (a column, or in `extra`), or the answer as
    JSON; with labels, {"label": ..., "box": [...]}, only boxes of one label match. Between 0 and 1 it is no verdict.

    Args:
        row: The completion, a JSON list of boxes.
        gold: The boxes, if the row has none.
        max_chars: Longer completions are judged by their last characters.
        least: IoU below which a pair counts 0.
        excess: False if stated boxes beyond the number of the gold's cost nothing.
    """
    wanted, found = _labelled(known(row, gold, "boxes")), _labelled(stated(row, max_chars))
    if not wanted:
        return failed("the row has no boxes: a list of [x1, y1, x2, y2]")
    if found is None:
        return unparsed()
    scores = [[iou(b, c) if one == other else 0.0 for other, c in found] for one, b in wanted]
    table = np.array(scores, np.float64).reshape(len(wanted), len(found))
    value = matched(np.where(table >= least, table, 0.0)) / len(wanted)
    return Verdict(value * (min(1.0, len(wanted) / max(len(found), 1)) if excess else 1.0))


@component("reward", name="detections", paper="arXiv 2504.07615", columns=("boxes", "extra"))
def judge_detections(row: Row, gold: str, max_chars: int) -> Verdict:
    """R = min(1, G / S) mAP of S stated boxes against G gold ones.

    VLM-R1 (arXiv 2504.07615), open-vocabulary detection: the factor takes from answers with more boxes than there are.
    mAP is the mean over the labels of the gold and IoU thresholds of 0.5, 0.55 ... 0.95 of the area under the highest
    precision at each recall or beyond. Boxes have no confidence: the first one stated comes first. The gold is `boxes`
    (a column, or in `extra`), or the answer as JSON, as for `boxes`. Between 0 and 1 it is no verdict. Deviation: the
    area is exact, where COCO's takes 101 points.

    Args:
        row: The completion, a JSON list of boxes.
        gold: The boxes, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    wanted, found = _labelled(known(row, gold, "boxes")), _labelled(stated(row, max_chars))
    if not wanted:
        return failed("the row has no boxes: a list of [x1, y1, x2, y2]")
    if found is None:
        return unparsed()
    labels = list(dict.fromkeys(label for label, _ in wanted))
    total = 0.0
    for label in labels:
        scores = [[iou(box, each) for name, each in wanted if name == label] for name, box in found if name == label]
        total += sum(average_precision(scores, sum(name == label for name, _ in wanted), least) for least in THRESHOLDS)
    return Verdict(total / len(labels) / len(THRESHOLDS) * min(1.0, len(wanted) / max(len(found), 1)))


def average_precision(scores: Sequence[Sequence[float]], num_wanted: int, least: float) -> float:
    """Return the area under precision by recall of stated boxes, in their order, by their IoU with each gold box.

    >>> average_precision([[1.0, 0.0], [0.0, 0.3]], 2, 0.5), average_precision([[0.0, 0.3], [1.0, 0.0]], 2, 0.5)
    (0.5, 0.25)
    """
    left, precision = set(range(num_wanted)), list[float]()
    for place, row in enumerate(scores, 1):
        best = max(left, key=row.__getitem__, default=None)
        if best is not None and row[best] >= least:
            left.remove(best)
            precision.append((len(precision) + 1) / place)
    # A hit raises the recall by 1 / G, at the highest precision from there on.
    return sum(max(precision[at:]) for at in range(len(precision))) / num_wanted


def warm_up() -> None:
    """Import the solver, which takes longer than judging a hundred rows."""
    matched(np.eye(2))


def matched(scores: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the largest sum of scores (N, M) that a matching one to one has."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - slow to import

    return float(scores[linear_sum_assignment(scores, maximize=True)].sum())


def iou(one: Box, other: Box) -> float:
    """Return the IoU of two boxes; 0 if neither has an area."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = max(width, 0.0) * max(height, 0.0)
    union = _area(one) + _area(other) - common
    return common / union if union > 0 else 0.0


def is_box(value: Any) -> TypeGuard[Box]:
    """Return whether a value of JSON is a box of coordinates up to a million."""
    return (
        is_numbers(value, 4)
        and max(map(abs, value)) <= 1e6
        and bool(value[0] <= value[2])
        and bool(value[1] <= value[3])
    )


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _labelled(value: Any) -> list[tuple[str, Box]] | None:
    """Return boxes with their labels; None if one of them is none, or there are more than a thousand."""
    if not isinstance(value, list) or len(value) > 1000:
        return None
    pairs = [(each.get("label"), each.get("box")) if isinstance(each, dict) else ("", each) for each in value]
    boxes = [(str(label), box) for label, box in pairs if is_box(box)]
    return boxes if len(boxes) == len(pairs) else None
