"""The wave `rubric_guided` and the shape `rubric_items` (RGR-GRPO): items, shares and guided answers, by hand."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.by_use import of_use
from gradus.data.curation.round import RoundRows, round_of
from gradus.data.curation.shapes.graded import rubric_items
from gradus.data.curation.waves.rubrics import rubric_guided

RNG = np.random.default_rng(0)
RUBRIC = json.dumps(
    {"rubric": [{"text": "It adds.", "weight": 3}, "It says 12.", {"weight": 2}, {"text": "x", "weight": 0}]}
)
"""Two items, of the weights 3 and 1; the others are none."""


def answer(name: str, group: int, extra: str | None = RUBRIC, text: str | None = "t", **more: Any) -> dict[str, Any]:
    return {
        "rollout_id": name,
        "problem_id": name[0],
        "group": group,
        "group_id": f"{name[0]}@r1h0",
        "completion": text,
        "problem.question": f"{name[0]}?",
        "problem.messages": None,
        "problem.answer": "12",
        "problem.extra": extra,
        "use": None,
        "about": None,
        "reward": None,
        "plan.item": None,
        "plan.item_weight": None,
        **more,
    }


def verdict(about: str, item: int, reward: float | None, weight: float) -> dict[str, Any]:
    said = {"use": "judge", "about": [about], "reward": reward, "plan.item": item, "plan.item_weight": weight}
    return answer(f"j{about}{item}", 9, **said)


def table(*rows: dict[str, Any]) -> pa.Table:
    floats = ("reward", "plan.item", "plan.item_weight")
    types = {"problem.messages": pa.string(), "use": pa.string(), **dict.fromkeys(floats, pa.float64())}
    found = pa.Table.from_pylist([*rows])
    for name, kind in {**types, "about": pa.list_(pa.string())}.items():
        found = found.set_column(found.column_names.index(name), name, found.column(name).cast(kind))
    return found


ANSWERS = (answer("a0", 0), answer("a1", 0), answer("b0", 1, None), answer("b1", 1, None, None))


def test_every_item_of_every_answer_is_judged_once() -> None:
    plan = rubric_guided(round_of(table(*ANSWERS)), RNG, items=("Good.",), template="{question} {answer} {item}")
    assert plan is not None
    asked = [messages[0]["content"] for messages in plan.columns["messages"].to_pylist()]
    assert asked == ["a? t It adds.", "a? t It says 12.", "a? t It adds.", "a? t It says 12.", "b? t Good."]
    assert plan.columns["item"].to_pylist() == [0, 1, 0, 1, 0]
    assert plan.columns["item_weight"].to_pylist() == [3.0, 1.0, 3.0, 1.0, 1.0]
    assert plan.columns["about"].to_pylist() == [["a0"], ["a0"], ["a1"], ["a1"], ["b0"]]
    assert set(plan.columns["role"].to_pylist()) == set(plan.columns["use"].to_pylist()) == {"judge"}
    said = [verdict("a0", 0, 1.0, 3), verdict("a0", 1, None, 1), verdict("a1", 0, 0.0, 3), verdict("a1", 1, 1.0, 1)]
    last = rubric_guided(round_of(table(*ANSWERS, *said), calls=2), RNG, items=("Good.",))
    assert last is not None
    assert last.columns["about"].to_pylist() == [["b0"]]


def test_the_best_answer_is_improved_by_the_items_that_it_fails_but_for_those_that_state_the_answer() -> None:
    said = [
        *(verdict("a0", 0, 0.0, 3), verdict("a0", 1, 1.0, 1)),  # 1 / 4
        *(verdict("a1", 0, 0.0, 3), verdict("a1", 1, 0.0, 1)),  # 0
        verdict("b0", 0, 1.0, 1),  # meets all
        *(verdict("c0", 0, 1.0, 3), verdict("c0", 1, 0.0, 1)),  # fails the one that states the answer
        verdict("d0", 1, 0.0, 1),  # so does d, and nobody judged the other
        *(verdict("e0", 0, None, 3), verdict("e0", 1, 0.0, 1)),  # nor of e, for which a judge was asked
    ]
    round_ = round_of(table(*ANSWERS, answer("c0", 2), answer("d0", 3), answer("e0", 4), *said), calls=1)
    plan = rubric_guided(round_, RNG, items=("Good.",), guide="{question} {answer} {items}")
    assert plan is not None
    assert plan.problem_id.to_pylist() == ["a"]
    assert plan.columns["messages"].to_pylist()[0][0]["content"] == "a? t - It adds."
    assert plan.columns["group_id" if "group_id" in plan.columns else "group"].to_pylist() == ["0"]
    assert plan.columns["trained_prompt"].to_pylist() == ["problem"]
    assert plan.columns["origin"].to_pylist() == ["refined"]
    assert plan.skipped == {"every failed item states the answer": 3}


def test_a_row_earns_the_weighted_share_of_the_items_that_it_meets() -> None:
    said = [verdict("a0", 0, 1.0, 3), verdict("a0", 1, 0.0, 1), verdict("a1", 0, 0.5, 3), verdict("a1", 1, None, 1)]
    whole = table(*ANSWERS, *said)
    rows = BatchRows(of_use(whole, "learn"), beside=whole)
    assert isinstance(rows, RoundRows)
    found = rubric_items(rows)["reward"].tolist()
    assert found[:2] == [0.75, 0.5]  # (3 + 0) / 4, and 1.5 / 3: an item without a verdict counts nowhere
    assert found[2:] == pytest.approx([np.nan, np.nan], nan_ok=True)
    added = table(answer("a0", 0, reward=2.0), answer("a1", 0), answer("b0", 1, reward=1.0), *said)
    found = rubric_items(BatchRows(of_use(added, "learn"), beside=added), scale=0.5)["reward"].tolist()
    assert found == pytest.approx([2 + 0.5 * 0.75, np.nan, np.nan], nan_ok=True)
