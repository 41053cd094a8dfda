"""Waves of texts that are there already: which groups they join, against rounds by hand."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import ColumnError
from gradus.data.curation.batch import last_groups
from gradus.data.curation.round import Round, WaveError, round_of
from gradus.data.curation.traces import TraceRows, highest
from gradus.data.curation.waves.given import given, given_unsolved

RNG = np.random.default_rng(0)
PROBLEMS = pa.table({"problem_id": ["c", "b", "a", "d"]})
SOLVED = {"a": ("1+1=2", "2", None), "b": ("3", None, None), "c": (None, "4", None), "d": ("5+0=5", "5", "5.0")}
ROWS = [  # problem, group, hint level, correct
    *[("a", 0, 0, 0.0), ("a", 0, 0, 1.0), ("b", 1, 0, 0.0), ("b", 1, 0, 0.0)],
    *[("c", 2, 0, 1.0), ("d", 3, 0, 0.0), ("d", 4, 2, 0.0), ("d", 5, 2, None)],
]


def a_round(traces: pa.Table | None = None, rows: list[tuple[Any, ...]] = ROWS) -> Round:
    names, groups, levels, correct = zip(*rows, strict=True)
    solved = [SOLVED[name] for name in names]
    columns = {f"problem.{name}": pa.array([each[at] for each in solved], pa.string()) for at, name in
               enumerate(("solution", "answer", "answer_given"))}  # fmt: skip
    table = pa.table(
        {
            "problem_id": names,
            "group": groups,
            "hint_level": pa.array(levels, pa.int32()),
            "correct": pa.array(correct, pa.float64()),
            "reward": pa.array(correct, pa.float64()),
            "origin": pa.nulls(len(rows), pa.string()),
            **columns,
        }
    )
    return round_of(table, PROBLEMS, traces=traces)


def planned(found: Any) -> list[tuple[Any, ...]]:
    columns = {name: values.to_pylist() for name, values in found.columns.items()}
    return list(zip(found.problem_id.to_pylist(), columns["group"], columns["given"], strict=True))


def test_every_group_gets_the_solution_of_its_problem_in_the_order_of_the_problems() -> None:
    found = given(a_round(), RNG)
    assert found is not None
    # d was tried three times: its last group that was judged is 4, at level 2; c has no solution.
    assert planned(found) == [("b", "1", "3"), ("a", "0", "1+1=2"), ("d", "4", "5+0=5")]
    assert {name: set(found.columns[name].to_pylist()) for name in ("origin", "n")} == {"origin": {"expert"}, "n": {1}}
    assert {"hint_level", "hint_text"}.isdisjoint(found.columns)
    assert found.skipped == {"no text for the problem, or no group to join": 1}


def test_a_template_with_the_answer_leaves_out_problems_without_one() -> None:
    found = given(a_round(), RNG, origin="book", template="{solution}\n#### {answer}")
    assert planned(found) == [("a", "0", "1+1=2\n#### 2"), ("d", "4", "5+0=5\n#### 5.0")]


def test_texts_of_a_file_are_several_a_problem_in_the_order_of_the_file() -> None:
    traces = pa.table({"problem_id": [*"caac"], "text": [*"wxyz"], "source": ["r1", None, "r2", "r1"]})
    found = given(a_round(traces), RNG)
    assert found is not None
    assert planned(found) == [("c", "2", "w"), ("a", "0", "x"), ("a", "0", "y"), ("c", "2", "z")]
    assert found.columns["source"].to_pylist() == ["r1", None, "r2", "r1"]


def test_the_text_of_each_problem_that_is_highest_in_a_column_stands_in_the_order_of_the_file() -> None:
    value = [None, 0.5, 2.0, None, 2.0, -1.0]
    rows = TraceRows(pa.table({"trace_id": [*"012345"], "problem_id": [*"caacab"], "kind.value": value}))
    # a has 0.5 and twice 2; c was never measured.
    assert highest(rows, "kind.value").table.column("trace_id").to_pylist() == ["0", "2", "5"]
    with pytest.raises(ColumnError, match="problem_id is no number"):
        highest(rows, "problem_id")


@pytest.mark.parametrize(("solved", "groups"), [(0, ["1", "4"]), (1, ["1", "0", "4"])])
def test_only_groups_that_the_policy_does_not_solve(solved: int, groups: list[str]) -> None:
    found = given_unsolved(a_round(), RNG, solved=solved)
    assert [group for _, group, _ in planned(found)] == groups


def test_without_any_verdict_all_groups_of_the_policy_count() -> None:
    found = given(a_round(rows=[("a", 0, 0, None), ("b", 1, 0, None)]), RNG)
    assert [group for _, group, _ in planned(found)] == ["1", "0"]


def test_the_last_group_is_the_later_one_of_the_highest_level() -> None:
    problem, group, level = (np.array(each) for each in ([0, 0, 0, 1], [0, 1, 2, 3], [2, 2, 0, 0]))
    own = np.array([True, True, True, False])
    assert last_groups(problem, group, level, own).tolist() == [1, 1, 1, -1]


def test_a_given_row_inherits_no_hint_and_is_one() -> None:
    shown = a_round()
    plan = shown.plan(like=np.array([6]), given="x", origin="expert")
    assert {name: each.to_pylist() for name, each in plan.columns.items()} == {
        "n": [1],
        "given": ["x"],
        "origin": ["expert"],
    }
    with pytest.raises(WaveError, match="it plans 1 rows and has 2 values of 'given'"):
        shown.plan(like=np.array([6]), given=["x", "y"], origin="expert")
