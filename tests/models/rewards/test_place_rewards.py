"""Boxes, points, spans, numbers, actions, graphs and paths: by hand, by counting pixels, by search."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.registry import components, find, function_of
from gradus.models.rewards.judges.places.boxes import (
    average_precision,
    iou,
    judge_box_iou,
    judge_boxes,
    judge_detections,
    matched,
)
from gradus.models.rewards.judges.places.paths import judge_action_prefix, judge_dtw, judge_graph_f1, warped
from gradus.models.rewards.judges.places.points import (
    judge_action,
    judge_attended,
    judge_point,
    judge_relative_error,
    judge_span_iou,
)
from tests.faults.test_hostile_completions import HOSTILE

MANY = 100_000
BOXES = st.tuples(*[st.integers(0, 8)] * 4).map(
    lambda b: [min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3])]
)


@given(BOXES, BOXES)
def test_iou_is_that_of_counted_pixels(one: list[int], other: list[int]) -> None:
    def pixels(box: list[int]) -> set[tuple[int, int]]:
        return set(itertools.product(range(box[0], box[2]), range(box[1], box[3])))

    either = len(pixels(one) | pixels(other))
    expected = len(pixels(one) & pixels(other)) / either if either else 0.0
    assert iou(one, other) == iou(other, one) == pytest.approx(expected)
    assert judge_box_iou({"completion": json.dumps(one), "box": other}, "", MANY).value == pytest.approx(expected)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_best_matching_is_that_of_a_search(scores: list[list[float]]) -> None:
    table = np.array(scores)
    size = min(table.shape)
    best = max(
        sum(table[i, j] for i, j in zip(rows, columns, strict=True))
        for rows in itertools.combinations(range(table.shape[0]), size)
        for columns in itertools.permutations(range(table.shape[1]), size)
    )
    assert matched(table) == pytest.approx(best)


A, B, HALF = [0, 0, 2, 2], [4, 4, 6, 6], [0, 0, 2, 1]
SEVERAL: list[tuple[Any, dict[str, Any], float]] = [
    ([B, A], {}, 1.0),
    ([A], {}, 0.5),
    ([HALF, B], {}, 0.75),
    ([HALF, B], {"least": 0.6}, 0.5),
    ([A, B, [9, 9, 10, 10], [8, 8, 9, 9]], {}, 0.5),
    ([A, B, [9, 9, 10, 10]], {"excess": False}, 1.0),
    ([A, A], {}, 0.5),
    ([], {}, 0.0),
]


@pytest.mark.parametrize(("said", "settings", "expected"), SEVERAL, ids=[str(at) for at in range(len(SEVERAL))])
def test_boxes_by_hand(said: Any, settings: dict[str, Any], expected: float) -> None:
    verdict = judge_boxes({"completion": json.dumps(said)}, json.dumps([A, B]), MANY, **settings)
    assert verdict.value == pytest.approx(expected)


TEN = [0, 0, 10, 10]
DETECTIONS = [
    ([TEN], [TEN], 1.0),
    ([TEN], [[0, 0, 10, 6]], 3 / 10),  # an IoU of 0.6: right at 0.5, 0.55 and 0.6
    ([TEN], [TEN, TEN], 1 / 2),  # a precision of 1 where all are found, of twice as many as there are
    ([TEN], [[50, 50, 60, 60], TEN], 1 / 2 * 1 / 2),
    ([TEN, [20, 0, 30, 10]], [TEN], 1 / 2),
    ([TEN, [20, 0, 30, 10]], [[20, 0, 30, 10], TEN], 1.0),
    ([{"label": "a", "box": TEN}, {"label": "b", "box": TEN}], [{"label": "a", "box": TEN}], 1 / 2),
    ([{"label": "a", "box": TEN}], [{"label": "b", "box": TEN}], 0.0),
    ([TEN], [], 0.0),
]


@pytest.mark.parametrize(("gold", "said", "expected"), DETECTIONS, ids=[str(at) for at in range(len(DETECTIONS))])
def test_detections_by_hand(gold: Any, said: Any, expected: float) -> None:
    verdict = judge_detections({"completion": json.dumps(said), "boxes": gold}, "", MANY)
    assert verdict.value == pytest.approx(expected)
    assert judge_detections({"completion": "none", "boxes": gold}, "", MANY).outcome == "unparsed"
    assert judge_detections({"completion": "[]", "boxes": [[0, 0, 1]]}, "", MANY).outcome == "error"


@given(st.lists(st.booleans(), max_size=8), st.integers(0, 4))
def test_average_precision_is_the_area_under_the_highest_precision(hits: list[bool], missed: int) -> None:
    num = sum(hits) + missed
    if not num:
        return
    numbers = [sum(hits[:at]) - 1 if hit else None for at, hit in enumerate(hits, 1)]
    scores = [[float(number == each) for each in range(num)] for number in numbers]
    points = [(sum(hits[:at]) / num, sum(hits[:at]) / at) for at in range(1, len(hits) + 1)]
    steps = [max((p for r, p in points if r >= recall - 1e-12), default=0.0) for recall in np.arange(1, num + 1) / num]
    assert average_precision(scores, num, 0.5) == pytest.approx(float(np.mean(steps)))


def test_labels_of_boxes_must_agree() -> None:
    wanted = [{"label": "cat", "box": A}, {"label": "dog", "box": B}]
    said = [{"label": "dog", "box": A}, {"label": "dog", "box": B}]
    assert judge_boxes({"completion": json.dumps(said), "boxes": wanted}, "", MANY).value == 0.5
    assert judge_boxes({"completion": "[[2, 0, 1, 1]]", "boxes": wanted}, "", MANY).outcome == "unparsed"
    assert judge_boxes({"completion": "[]", "boxes": [[0, 0, 1]]}, "", MANY).outcome == "error"


@pytest.mark.parametrize(
    ("said", "expected"),
    [([3, 4], 1.0), ([1, 2], 1.0), ([8, 8], math.exp(-5 / 2)), ([5, 0], math.exp(-2 / 2)), ([3, 3, 5, 5], 1.0)],
)
def test_a_point_decays_with_its_distance_to_the_box(said: list[int], expected: float) -> None:
    row = {"completion": f"I click {json.dumps(said)}.", "extra": json.dumps({"box": [1, 2, 5, 4]})}
    assert judge_point(row, "", MANY, width=2.0).value == pytest.approx(expected)
    assert judge_point(row, "", MANY).value == float(expected == 1.0)


@pytest.mark.parametrize(("said", "expected"), [([2, 6], 1.0), ([4, 8], 1 / 3), ([6, 9], 0.0), ([0, 8], 0.5)])
def test_spans_by_their_overlap(said: list[int], expected: float) -> None:
    assert judge_span_iou({"completion": json.dumps(said)}, "[2, 6]", MANY).value == pytest.approx(expected)
    assert judge_span_iou({"completion": "[6, 2]"}, "[2, 6]", MANY).outcome == "unparsed"
    assert judge_span_iou({"completion": "[3, 3]"}, "[3, 3]", MANY).value == 1.0


@pytest.mark.parametrize(
    ("said", "gold", "tolerance", "expected"),
    [
        ("#### 90", "100", 1.0, 0.9),
        ("#### 110", "100", 0.2, 0.5),
        ("#### 1,250", "$1000", 0.2, 0.0),
        ("#### -5", "5", 1, 0.0),
        ("#### 0", "0", 1.0, 1.0),
        ("#### 0.1", "0", 1.0, 0.0),
        ("the answer is 12%", "12", 1.0, 1.0),
    ],
)
def test_the_relative_error_of_a_number(said: str, gold: str, tolerance: float, expected: float) -> None:
    verdict = judge_relative_error({"completion": said}, gold, MANY, tolerance=tolerance)
    assert verdict.value == pytest.approx(expected)


CLICK = {"action": "click", "box": [0, 0, 4, 4]}
ACTIONS: list[tuple[Any, Any, float]] = [
    ({"action": "Click", "point": [1, 1]}, CLICK, 1.0),
    ({"action": "click", "point": [5, 1]}, CLICK, 0.5),
    ({"action": "click"}, CLICK, 0.5),
    ({"action": "scroll", "point": [1, 1]}, CLICK, 0.0),
    ({"action": "type", "text": "New York"}, {"action": "type", "text": "new  york."}, 1.0),
    ({"action": "type", "text": "York"}, {"action": "type", "text": "new york"}, 0.5),
    ({"action": "back"}, {"action": "back"}, 1.0),
]


@pytest.mark.parametrize(("said", "gold", "expected"), ACTIONS, ids=[str(at) for at in range(len(ACTIONS))])
def test_an_action_by_type_and_place(said: Any, gold: Any, expected: float) -> None:
    assert judge_action({"completion": json.dumps(said)}, json.dumps(gold), MANY).value == expected


@pytest.mark.parametrize(
    ("said", "gold", "expected"),
    [
        ({"action": "click", "point": [1, 1]}, CLICK, 1.0),
        ({"action": "click", "point": [5, 1]}, CLICK, 0.0),
        ({"action": "type", "text": "New York city"}, {"action": "type", "text": "york"}, 1.0),  # F1 = 2/4
        ({"action": "type", "text": "New York city hall"}, {"action": "type", "text": "york"}, 0.0),  # 2/5
        ({"action": "type"}, {"action": "type", "text": "york"}, 0.0),
        ({"action": "type", "text": ""}, {"action": "type", "text": ""}, 0.0),
        ({"action": "home"}, {"action": "home"}, 1.0),
    ],
)
def test_an_action_as_a_whole_with_the_words_of_its_text(said: Any, gold: Any, expected: float) -> None:
    verdict = judge_action({"completion": json.dumps(said)}, json.dumps(gold), MANY, whole=True, least_f1=0.5)
    assert (verdict.value, verdict.outcome) == (expected, "correct" if expected else "wrong")


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ([[0, 0, 4, 3]], 1.0),  # IoU 12/16
        ([[0, 0, 4, 2]], 0.0),  # 8/16 is not above a half
        ([[9, 9, 12, 12], [0, 0, 4, 4]], 1.0),
        ([[0, 0, 4, 4], [0, 0, 4, 2]], 0.0),  # one region twice
        ([], 0.0),
        ([[0, 0, 4, 4]] + [[at, 9, at + 1, 10] for at in range(100)], 0.0),
        ("no list", 0.0),
        ([[4, 4, 0, 0]], 0.0),
    ],
)
def test_regions_that_are_attended(regions: Any, expected: float) -> None:
    said = f"<blink>{json.dumps(regions)}</blink><think>[0, 0, 4, 4]</think>"
    assert judge_attended({"completion": said, "action": CLICK}, "", MANY).value == expected
    assert judge_attended({"completion": said, "action": {"action": "back"}}, "", MANY).value == 1.0
    assert judge_attended({"completion": said}, "", MANY).outcome == "error"


def test_graphs_by_their_nodes_and_edges() -> None:
    gold = {"nodes": ["man", "horse", "hat"], "edges": [["man", "rides", "horse"], ["man", "wears", "hat"]]}
    said = {"nodes": ["Man", "horse"], "edges": [["man", "rides", "horse"]]}
    # F1 of nodes 2*2/5, of edges 2*1/3.
    assert judge_graph_f1({"completion": json.dumps(said), "graph": gold}, "", MANY).value == pytest.approx(
        (4 / 5 + 2 / 3) / 2
    )
    alone = {"nodes": ["man"]}
    assert judge_graph_f1({"completion": json.dumps(alone), "graph": alone}, "", MANY).value == 1.0
    assert (
        judge_graph_f1(
            {"completion": json.dumps({"nodes": ["man"], "edges": [["a"]]}), "graph": gold}, "", MANY
        ).outcome
        == "unparsed"
    )


def walks(n: int, m: int) -> list[list[tuple[int, int]]]:
    """Every way from (0, 0) to (n - 1, m - 1) by one step in either or both."""
    if n == m == 1:
        return [[(0, 0)]]
    before = [(n - a, m - b) for a, b in ((1, 0), (0, 1), (1, 1)) if n > a and m > b]
    return [[*walk, (n - 1, m - 1)] for place in before for walk in walks(*place)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_time_warping_is_the_least_of_all_walks(one: Sequence[int], other: Sequence[int]) -> None:
    expected = min(sum(abs(one[i] - other[j]) for i, j in walk) for walk in walks(len(one), len(other)))
    assert warped(one, other) == warped(other, one) == expected
    verdict = judge_dtw({"completion": json.dumps(list(one)), "states": list(other)}, "", MANY)
    assert verdict.value == pytest.approx(math.exp(-expected / len(other)))


def test_states_of_texts() -> None:
    row = {"completion": '["start", "Turn", "turn", "stop"]', "states": ["start", "turn", "stop"]}
    assert judge_dtw(row, "", MANY).value == 1.0
    assert judge_dtw({**row, "completion": "[1, 2]"}, "", MANY).outcome == "unparsed"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["go", "take", "put"], 1.0),
        (["go", "take"], 2 / 3),
        (["go", "put", "take"], 1 / 3),
        (["go", "take", "put", "go"], 3 / 4),
        ([], 0.0),
    ],
)
def test_actions_up_to_the_first_wrong_one(said: list[str], expected: float) -> None:
    row = {"completion": json.dumps(said), "actions": ["Go", "take", "put"]}
    assert judge_action_prefix(row, "", MANY).value == pytest.approx(expected)


GOLDS = {
    "items": "quartz, b", "tool_calls": json.dumps([{"name": "f", "arguments": {}}]), "ndcg": '{"a": 1, "b": 0}',
    "json_record": '{"a": 1}', "satisfied": "[[1], [-2]]", "month_distance": "2024-05", "sql_result": "select 'x'",
    "rouge_l": "a reference", "chrf": "Quartz", "edit_similarity": "def f(): pass", "label": "cat",
    "box_iou": "[0, 0, 1, 1]", "boxes": "[[0, 0, 1, 1]]", "detections": "[[0, 0, 1, 1]]",
    "point": "[0, 0, 1, 1]", "span_iou": "[0, 1]",
    "relative_error": "5", "action": '{"action": "click"}',
    "attended": '{"action": "click", "box": [0, 0, 1, 1]}', "graph_f1": '{"nodes": ["a"]}', "dtw": '["a"]',
    "action_prefix": '["a"]',
}  # fmt: skip
EXTRA = {"constraints": [{"contains": "Quartz"}], "key_points": [[["quartz"]]], "terms": ["quartz"]}
TABLES = {"t": {"columns": ["x"], "rows": [[1]]}}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_hostile_is_right_in_any_of_these(what: str) -> None:
    """Rewards that say nothing of correctness are 0 or small; nothing raises, and none takes long."""
    rewards = {*GOLDS, *EXTRA}
    assert rewards <= set(components("reward"))
    for name in rewards:
        row = {"completion": HOSTILE[what], "extra": json.dumps(EXTRA), "tables": TABLES}
        verdict = function_of(find("reward", name))(row, GOLDS.get(name, "quartz"), 20_000)
        assert verdict.outcome != "correct", name
        assert verdict.value is not None, (name, verdict.error)
        assert verdict.value < 0.5, (name, verdict.value)
