"""The waves `write_hints` and `own_hints` (SAGE): who gets a hint, of which level, and which is withheld, by hand."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.curation.batch import first_batch
from gradus.data.curation.round import round_of
from gradus.data.curation.waves.hinted import own_hints, write_hints
from gradus.data.hints.leaks import leaks

RNG = np.random.default_rng(0)
SOLVED = {"a": [0.0, 0.0], "b": [0.0, 1.0], "c": [0.0, float("nan")], "d": [0.0, 0.0]}
"""Only a and d fail whole; a row of c was not judged."""


def answers(**more: Any) -> list[dict[str, Any]]:
    return [
        {
            "rollout_id": f"{name}{at}",
            "problem_id": name,
            "group": group,
            "group_id": f"{name}@r1h0",
            "hint_level": 0,
            "correct": right,
            "problem.question": f"{name}?",
            "problem.messages": None,
            "problem.solution": None if name == "d" else f"{name} is done so",
            "problem.answer": "12",
            "use": None,
            "about": None,
            "completion": "x",
            "plan.level": None,
            **more,
        }
        for group, (name, verdicts) in enumerate(SOLVED.items())
        for at, right in enumerate(verdicts)
    ]


def written(about: str, texts: dict[int, str | None]) -> list[dict[str, Any]]:
    base = answers()[0] | {"use": "written", "about": [about], "problem_id": about[0]}
    return [
        {**base, "rollout_id": f"{about}-{level}", "completion": text, "plan.level": level}
        for level, text in texts.items()
    ]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    types = {"problem.messages": pa.string(), "plan.level": pa.int64(), "use": pa.string(), "correct": pa.float64()}
    types["about"] = pa.list_(pa.string())
    listed = pa.Table.from_pylist(rows)
    for name, kind in types.items():
        listed = listed.set_column(listed.column_names.index(name), name, listed.column(name).cast(kind))
    return listed


def test_hints_are_written_from_the_solutions_of_problems_that_fail_whole() -> None:
    plan = write_hints(
        round_of(table(answers())), RNG, levels=(1, 3), template="{question} {solution} {level}/{levels}"
    )
    assert plan is not None
    assert plan.problem_id.to_pylist() == ["a", "a"]
    asked = [messages[0]["content"] for messages in plan.columns["messages"].to_pylist()]
    assert asked == ["a? a is done so 1/3", "a? a is done so 3/3"]
    assert plan.columns["level"].to_pylist() == [1, 3]
    assert plan.columns["about"].to_pylist() == [["a0"], ["a0"]]
    assert set(plan.columns["use"].to_pylist()) == {"written"}
    assert plan.columns["role"].to_pylist() == [None, None]  # the policy
    assert plan.skipped == {"no worked solution": 1}


def test_the_next_level_is_shown_until_a_rollout_is_right_and_none_that_states_the_answer() -> None:
    rows = [*answers(), *written("a0", {1: "Add them.", 2: "So it is twelve.", 3: "Add 5 to 7 twice? No."})]
    rows += written("d0", {1: "it is 12", 2: None, 3: "6 + 6 is it"})
    plan = own_hints(round_of(table(rows)), RNG, template="{question}|{hint}")
    assert plan is not None
    assert plan.problem_id.to_pylist() == ["a"]
    assert plan.columns["hint_level"].to_pylist() == [1]
    assert plan.columns["messages"].to_pylist()[0][0]["content"] == "a?|Add them."
    assert "trained_prompt" not in plan.columns  # what it was sampled from
    assert plan.skipped == {"every hint left states the answer": 1}
    again = [{**row, "rollout_id": f"n{at}", "hint_level": 1, "group": 9} for at, row in enumerate(rows[:2])]
    plan = own_hints(round_of(table([*rows, *again])), RNG)
    assert plan is not None
    assert plan.columns["hint_level"].to_pylist() == [3]  # "twelve" states the answer
    helped = [*again[:1], {**again[1], "correct": 1.0}]
    plan = own_hints(round_of(table([*rows, *helped])), RNG)
    assert plan is not None
    assert plan.num_rows == 0


def test_the_group_that_failed_gives_way_to_the_hinted_one() -> None:
    bare = [
        {
            "rollout_id": f"{group}:{at}",
            "problem_id": "a",
            "group_id": group,
            "hint_level": level,
            "origin": "own",
            "reward": float(right),
            "correct": right,
        }
        for group, level, verdicts in (("a@r1h0", 0, (False, False)), ("a@r1h1", 1, (False, True)))
        for at, right in enumerate(verdicts)
    ]
    batch = first_batch(pa.Table.from_pylist(bare))
    assert batch.table.column("taken").to_pylist() == [False, False, True, True]


@given(st.dictionaries(st.integers(1, 9), st.sampled_from(["add", "it is 12", "3 * 4", " ", "twelve", "go on"])))
def test_no_hint_that_is_shown_states_the_answer(texts: dict[int, str | None]) -> None:
    plan = own_hints(round_of(table([*answers(), *written("a0", texts)])), RNG, template="{hint}")
    assert plan is not None
    safe = [
        level for level, text in sorted(texts.items()) if (text or "").strip() and not leaks(text or "", "12", "a?")
    ]
    assert plan.columns["hint_level"].to_pylist() == safe[:1]
    assert [each[0]["content"] for each in plan.columns["messages"].to_pylist()] == [texts[level] for level in safe[:1]]
