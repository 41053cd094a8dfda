"""Rounds of a given plan: which rows each takes, what of them it keeps, and what is refused."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PLAN, cast_to_schema
from gradus.data.lake.store import Store
from gradus.tasks.artifacts.beginning import refuse_odd_plan
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from tests.tasks.stages.test_curate import curate

SAMPLE = SampleConfig(n=8, temperature=1.0, max_tokens=64)
ROWS = [
    {"problem_id": "c", "n": 4},
    {"problem_id": "a", "n": 16, "hint_level": 2, "hint_text": "think", "temperature": 0.5, "max_tokens": 9},
    {"problem_id": "c", "n": 2, "hint_level": 1, "hint_text": "other", "reason": "mine"},
]
KEYS = ("problem_id", "n", "hint_level", "hint_text", "temperature", "max_tokens")


def rows_of(rows: list[dict[str, Any]]) -> pa.Table:
    named = [{**row, "group_id": str(at)} for at, row in enumerate(rows)]
    return cast_to_schema(
        pa.Table.from_pylist(named, schema=pa.schema([(n, PLAN.type_of(n)) for n in {k: 0 for r in named for k in r}])),
        PLAN,
    )


def planned(tmp_path: Path, round: int, draw: int = 0, rows: list[dict[str, Any]] = ROWS, **more: Any) -> Any:
    config = CurateConfig(sample=SAMPLE, draw=draw)
    return curate(tmp_path, config, round=round, counts={}, plan=rows_of(rows), **more)


@pytest.mark.parametrize(
    ("round", "draw", "taken"),
    [
        (1, 0, [0, 1, 2]),
        (2, 0, [0, 1, 2]),
        (1, 2, [0, 1]),
        (2, 2, [2, 0]),
        (3, 2, [1, 2]),
        (4, 2, [0, 1]),
        (2, 9, [0, 1, 2]),
    ],
)
def test_a_round_takes_the_next_rows(tmp_path: Path, round: int, draw: int, taken: list[int]) -> None:
    plan, result = planned(tmp_path, round, draw)
    assert [(row["problem_id"], row["n"]) for row in plan] == [(ROWS[at]["problem_id"], ROWS[at]["n"]) for at in taken]
    assert result.summary["kept"] == len(taken)


def test_rows_are_taken_as_they_are_and_named_by_the_round(tmp_path: Path) -> None:
    plan, _ = planned(tmp_path, 3)
    assert [tuple(row[key] for key in KEYS) for row in plan] == [
        ("c", 4, 0, None, 1.0, 64),
        ("a", 16, 2, "think", 0.5, 9),
        ("c", 2, 1, "other", 1.0, 64),
    ]
    assert [row["group_id"] for row in plan] == ["c@r3h0", "a@r3h2", "c@r3h1"]
    assert len({row["seed"] for row in plan}) == 3
    assert [row["reason"] for row in plan] == ["a row of the given plan", "a row of the given plan", "mine"]
    assert "wave" not in plan[0]


HINTS = pa.table(
    {
        "problem_id": ["a", "a", "b"],
        "strategy": ["prefix"] * 3,
        "level": pa.array([1, 2, 1], pa.int32()),
        "fraction": [0.3, 0.6, 0.3],
        "text": ["one", "two", "it is 7"],
        "leaks_answer": [False, False, True],
    }
)


def test_a_level_without_a_text_has_that_of_the_hints(tmp_path: Path) -> None:
    rows = [
        {"problem_id": "a", "n": 2, "hint_level": 2},
        {"problem_id": "a", "n": 2, "hint_level": 1, "hint_text": "x"},
    ]
    plan, _ = planned(tmp_path, 1, rows=[*rows, {"problem_id": "b", "n": 2}], hints=HINTS)
    assert [(row["hint_level"], row["hint_text"]) for row in plan] == [(2, "two"), (1, "x"), (0, None)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"problem_id": "b", "hint_level": 1}, "hint level 1 of problem b, which states the answer"),
        ({"problem_id": "c", "hint_level": 1}, "hint level 1 of problem c, which is not there"),
    ],
)
def test_a_hint_that_cannot_be_shown_is_refused(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=f"the given plan shows {said}"):
        planned(tmp_path, 1, rows=[{"n": 2, **row}], hints=HINTS)


def refusal(tmp_path: Path, row: dict[str, Any], hints: bool = False) -> str:
    """The sentence of a plan of two rows, the second one odd; hints are built of three levels, or given."""
    store = Store(tmp_path)
    problems = store.put("problems", pa.table({"problem_id": ["a", "b"], "question": ["?", "?"]}))
    rows = [{"problem_id": "a", "n": 2}, {"problem_id": "b", "n": 2, **row}]
    given = store.put("hints", HINTS) if hints else None
    with pytest.raises(BadInputError) as refused:
        refuse_odd_plan(store, store.put("plan", rows_of(rows)), [problems], given, 3)
    return f"{refused.value.message}; {refused.value.hint}"


def test_odd_rows_are_one_sentence(tmp_path: Path) -> None:
    found = refusal(tmp_path, {"problem_id": "x"})
    assert found.startswith("begin.plan: row 2: problem x is not trained on; plan problems of problems/")
    found = refusal(tmp_path, {"hint_level": 4})
    assert found.startswith("begin.plan: row 2: problem b has a hint_level above 3, the levels of hint.fractions; ")
    found = refusal(tmp_path, {"hint_level": 2}, hints=True)
    assert found.startswith("begin.plan: row 2: problem b has a hint_level that begin.hints lacks; ")
    found = refusal(tmp_path, {"hint_text": "think"})
    assert found.startswith("begin.plan: row 2: problem b has a hint_text and no hint_level; ")
    assert refusal(tmp_path, {"given": "7", "origin": "expert"}).startswith("begin.plan: it has the column ")


def test_levels_alone_ask_for_hints(tmp_path: Path) -> None:
    store = Store(tmp_path)
    problems = store.put("problems", pa.table({"problem_id": ["a", "b"], "question": ["?", "?"]}))
    for row, asks in (({"hint_level": 3}, True), ({"hint_level": 9, "hint_text": "x"}, False), ({}, False)):
        plan = store.put("plan", rows_of([{"problem_id": "a", "n": 1, **row}]))
        assert refuse_odd_plan(store, plan, [problems], None, 3) is asks
