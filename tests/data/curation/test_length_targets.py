"""Lengths that problems ask for, lengths of a group, formats with a length, turns and answers on the way, by hand."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import Rows
from gradus.data.curation.batch import ShapeError
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.graded import rescaled
from gradus.data.curation.shapes.lengths import format_length, length_targets, shorter
from gradus.data.curation.shapes.parts import few_turns, interleaved
from gradus.data.curation.tracked import Tracked
from gradus.data.curation.trackers.progress import accuracy

NAN = np.nan


def objects(*values: Any) -> Any:
    found = np.empty(len(values), dtype=np.object_)
    found[:] = values
    return found


def asked(*targets: Any, length: list[int], reward: list[float]) -> Rows:
    columns = {"length": np.array(length), "reward": np.array(reward, dtype=np.float64)}
    return Rows({**columns, "problem.length_target": objects(*targets)})


def test_completions_lose_by_the_distance_from_the_length_that_is_asked_for() -> None:
    # Equal 10: 3 short, 2 long. At most 10: 8, 14. At least 10: 8, 14. Between 5 and 7: 4, 6, 9. No target.
    equal, most, least, between = {"min": 10, "max": 10}, {"max": 10}, {"min": 10}, {"min": 5, "max": 7}
    rows = asked(
        *(equal, equal, most, most, least, least, between, between, between, None),
        length=[7, 12, 8, 14, 8, 14, 4, 6, 9, 99],
        reward=[1, 0, 1, 1, 1, 1, 0, 1, 1, 1],
    )
    found = length_targets(rows, scale=0.1)
    assert found["reward"].tolist() == pytest.approx([0.7, -0.2, 1.0, 0.6, 0.8, 1.0, -0.1, 1.0, 0.8, 1.0])
    assert found["met_frac"].tolist() == [False, False, True, False, False, True, False, True, False, True]


def test_a_factor_falls_around_the_most_tokens() -> None:
    # 0.05 (20 - L) + 0.5: 1 from 10 tokens down, a half at 20, 0 from 30 on; of a reward of 2; and no bound above.
    most = {"max": 20}
    rows = asked(most, most, most, most, {"min": 9}, length=[3, 14, 20, 31, 2], reward=[2, 2, 2, 2, 2])
    found = length_targets(rows, form="factor", scale=0.05, offset=0.5)["reward"]
    assert found.tolist() == pytest.approx([2.0, 1.6, 1.0, 0.0, 2.0])


@pytest.mark.parametrize(
    "target", [12, {}, {"min": 3, "most": 4}, {"min": 5, "max": 3}, {"max": "3"}, {"min": -1}, {"max": True}]
)
def test_a_target_that_is_none_is_refused(target: Any) -> None:
    with pytest.raises(ShapeError, match="length_target is"):
        length_targets(asked(target, length=[1], reward=[1]))


def test_short_right_completions_gain_and_long_ones_lose() -> None:
    # Group 0 from 10 to 30 tokens: 1/2, 0, -1/2; the wrong one of 15 would gain a quarter. Group 1 has one length.
    rows = Rows(
        {
            "group": np.array([0, 0, 0, 0, 0, 1, 1]),
            "correct": np.array([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]),
            "length": np.array([10, 20, 30, 15, 25, 7, 7]),
            "reward": np.array([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, NAN]),
        }
    )
    found = shorter(rows, scale=0.4)
    assert found["length_term"].tolist() == [0.5, 0.0, -0.5, 0.0, -0.25, 0.0, 0.0]
    assert found["reward"][:6].tolist() == pytest.approx([1.2, 1.0, 0.8, 0.0, -0.1, 1.0])
    assert np.isnan(found["reward"][6])


def test_a_length_counts_only_where_the_format_holds() -> None:
    # Limit 100, p = 0.4: x = 0.2 has 1 - 1/4, x = 0.4 has 1, x = 0.7 has 1 - 2/4, x = 1 has -1, and so has all beyond.
    boxed, length = r"so \boxed{7}", np.array([20, 40, 70, 100, 200, 0])
    holding = Rows({"completion": objects(*[boxed] * 6), "length": length})
    found = format_length(holding, limit=100, turn=0.4)
    assert found["reward"].tolist() == pytest.approx([1.75, 2.0, 1.5, 0.0, 0.0, 1.0])
    without = Rows({"completion": objects("7", "", None, "7", r"\boxed{}", "7"), "length": length})
    found = format_length(without, limit=100, turn=0.4)
    assert found["reward"].tolist() == pytest.approx([0.0, 0.0, 0.0, -1.0, -1.0, 0.0])
    assert not found["format_frac"].any()


def test_fewer_turns_are_worth_more_if_the_answer_is_right() -> None:
    texts = ("<think>a</think>1", "<think>a</think>1<think>b</think>2", "no turn", "<think>a</think>", None)
    columns = {"correct": np.array([1.0, 1.0, 1.0, 0.0, NAN]), "reward": np.array([1.0, 1.0, 1.0, 0.0, NAN])}
    found = few_turns(Rows({"completion": objects(*texts), **columns}), scale=0.6)
    assert found["turns"].tolist() == [1, 2, 1, 1, 1]
    assert found["reward"][:4].tolist() == pytest.approx([1.6, 1.3, 1.6, 0.0])
    assert np.isnan(found["reward"][4])


STEPS = tuple(f"<think>t</think> <answer>{each}</answer> " for each in ("A", " b ", "c", "9"))


def on_the_way(*texts: str, before: float = NAN, correct: Any = 1.0, origin: Any = None) -> Rows:
    num = len(texts)
    return Rows(
        {
            "completion": objects(*texts),
            "correct": np.broadcast_to(np.asarray(correct, np.float64), num),
            "origin": objects(*(origin or [None] * num)),
            "reward": np.ones(num),
            "problem.sub_answers": objects(*[["a", "B", "x"]] * num),
            "accuracy.share": np.full(num, before),
        }
    )


def test_answers_on_the_way_have_their_credit() -> None:
    a, b, c, last = STEPS
    x = a.replace("A", "X")
    # Of a, b, x: in places 1 and 2; 2 and 1; all; only a, the last one being the final answer; none at all.
    rows = on_the_way(a + b + c + last, b + a + last, a + b + x + last, a + b, last)
    values = {
        "discounted": [(1 + 1 / 2) / 3, (1 / 2 + 1) / 3, 1.0, 1 / 3, 0.0],
        "mean": [2 / 3, 0.0, 1.0, 1 / 3, 0.0],
        "all": [0.0, 0.0, 1.0, 0.0, 0.0],
    }
    for credit, expected in values.items():
        found = interleaved(rows, credit=credit, scale=0.5)["reward"]  # pyright: ignore[reportArgumentType]
        assert found.tolist() == pytest.approx([1 + each / 2 for each in expected])


def test_answers_on_the_way_count_only_where_the_end_is_right_and_the_form_holds() -> None:
    text = "".join(STEPS)
    rows = on_the_way(text, text, "so " + text, text, correct=[1.0, 0.0, 1.0, NAN])
    assert interleaved(rows)["credited_frac"].tolist() == [True, False, False, False]
    none = on_the_way(text)
    with_none = Rows({**{name: none[name] for name in none.columns}, "problem.sub_answers": objects(None)})
    assert interleaved(with_none)["reward"].tolist() == [1.0]
    with_text = Rows({**{name: none[name] for name in none.columns}, "problem.sub_answers": objects("a, b")})
    with pytest.raises(ShapeError, match="a list of texts"):
        interleaved(with_text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "said",
    ["<think>a</think><answer>7</answer>" * 20_000 + "x", "<think>" * 50_000, "<think>a</think>" + "<answer>" * 50_000],
)
def test_expressions_for_answers_on_the_way_end_on_hostile_texts(said: str) -> None:
    rows = on_the_way(said)
    assert interleaved(rows)["reward"].tolist() == [1.0]
    boxes = Rows({"completion": objects(r"\boxed{" * 50_000, r"\boxed{\frac{1}{2}}"), "length": np.array([9, 9])})
    assert format_length(boxes)["format_frac"].tolist() == [False, True]


def test_answers_on_the_way_count_only_while_the_accuracy_does_not_fall() -> None:
    # 2 of 4 own verdicts are right, a given text and a row without a verdict count nowhere.
    columns: dict[str, Any] = {"correct": [1, 1, 0, 0, 1, NAN], "origin": [None, "own", None, None, "expert", None]}
    texts = ["".join(STEPS)] * 6
    for before, rising in ((NAN, True), (0.4, True), (0.59, True), (0.61, False), (0.9, False)):
        found = interleaved(on_the_way(*texts, before=before, **columns), eps=0.1)
        assert found["rising"].tolist() == [rising] * 6
        assert found["credited_frac"].any() == rising
    assert not interleaved(on_the_way(*texts, before=0.5, **columns), eps=0.0)["rising"].any()  # above, not equal


def test_the_tracker_keeps_the_accuracy_of_the_newest_round() -> None:
    def kept(correct: list[float | None], origin: list[str | None], before: list[float]) -> float:
        judged = {"correct": pa.array(correct, pa.float64()), "origin": pa.array(origin, pa.string())}
        rows = pa.table({"problem_id": ["a"] * len(correct), "group": [0] * len(correct), **judged})
        known = Tracked(pa.table({"share": pa.array(before, pa.float64())}))
        return float(accuracy(known, round_of(rows))["share"][0])

    assert kept([1, 0, 0, None, 1], [None, "own", None, None, "expert"], [0.9]) == pytest.approx(1 / 3)
    assert kept([None], [None], [0.9]) == 0.9
    assert np.isnan(kept([None], [None], []))


def test_a_part_is_stretched_within_its_group() -> None:
    parts = objects(*([("s", value)] for value in (0.90, 0.92, 0.91, 0.5, 0.5, 0.1, 0.3)))
    columns = {"group": np.array([0, 0, 0, 1, 1, 2, 2]), "reward": np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, NAN])}
    found = rescaled(Rows({"components": parts, **columns}), part="s", scale=0.5)
    assert found["reward"][:6].tolist() == pytest.approx([1.0, 0.5, 1.25, 1.0, 0.0, 1.0])
    assert np.isnan(found["reward"][6])
    assert found["spread"].tolist() == pytest.approx([0.02] * 3 + [0.0] * 4)
