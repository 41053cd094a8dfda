"""StepWiser by hand: cuts at lines, values before and behind chunks, labels and rewards of verdicts."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.parts import right_about_chunks
from gradus.data.curation.waves.chunks import chunk_values, judge_chunks

RNG = np.random.default_rng(0)
TEXT = "one\ntwo\n\nthree\nfour"
ENDS = [3, 5, 8, 9, 14, 15, 19, 19]
STARTS = [0, *ENDS[:-1]]


def test_answers_are_continued_from_the_ends_of_their_lines() -> None:
    rows = pa.table(
        {
            "problem_id": ["p", "q"], "group": [0, 1], "completion": [TEXT, None],
            "token_starts": pa.array([STARTS, None], pa.list_(pa.int64())),
            "token_ends": pa.array([ENDS, None], pa.list_(pa.int64())),
        }
    )  # fmt: skip
    found = chunk_values(round_of(rows), RNG, every=1, n=2)
    assert found is not None
    # one | t, wo+newline | newline | three | newline | four | end: three lines end before the last
    assert found.columns["cut"].to_pylist() == [3, 7, 14]
    assert found.columns["branch_at"].to_pylist() == [1, 3, 5]
    assert found.columns["parent"].to_pylist() == ["0"] * 3
    two = chunk_values(round_of(rows), RNG, every=2)
    assert two is not None
    assert two.columns["cut"].to_pylist() == [7]
    assert chunk_values(round_of(rows.slice(1)), RNG) is None


# a is right, b wrong, one group. Of two continuations from a's first line one is right; both from its second are, and a
# third was not judged; those from b's first line are wrong.
SAID = [("a", 3, 1.0), ("a", 3, 0.0), ("a", 7, 1.0), ("a", 7, 1.0), ("a", 7, None), ("b", 3, 0.0), ("gone", 3, 1.0)]


def valued() -> pa.Table:
    num = len(SAID)
    columns: dict[str, Any] = {
        "rollout_id": ["a", "b", *(f"v{i}" for i in range(num))],
        "problem_id": ["p"] * (2 + num),
        "group": [0, 0, *range(1, 1 + num)],
        "completion": ["one\ntwo\nthree", "one\nno", *["x"] * num],
        "problem.question": ["?"] * (2 + num),
        "problem.messages": pa.nulls(2 + num),
        "reward": [1.0, 0.0, *(reward for *_, reward in SAID)],
        "use": [None, None, *["value"] * num],
        "about": [None, None, *([name] for name, *_ in SAID)],
        "plan.cut": [None, None, *(cut for _, cut, _ in SAID)],
    }
    return pa.table(columns)


def test_a_judge_is_asked_about_each_chunk_with_the_text_before_it() -> None:
    found = judge_chunks(round_of(valued()), RNG, template="{before}|{chunk}")
    assert found is not None
    asked = [turns[0]["content"] for turns in found.columns["messages"].to_pylist()]
    assert asked == ["|one", "one|two", "one\ntwo|three", "|one", "one|no"]
    assert found.columns["about"].to_pylist() == [["a"], ["a"], ["a"], ["b"], ["b"]]
    assert found.columns["before"].to_pylist() == [0.5, 0.5, 1.0, 0.5, 0.0]
    assert found.columns["value"].to_pylist() == [0.5, 1.0, 1.0, 0.0, 0.0]
    assert judge_chunks(round_of(valued().slice(0, 2)), RNG) is None


@pytest.mark.parametrize(
    ("label", "good"),
    [("absolute", [1, 1, 1, 0, 0]), ("relative", [1, 1, 0, 0, 0])],
)
def test_a_verdict_is_rewarded_if_it_says_what_the_continuations_say(label: Any, good: list[float]) -> None:
    table = pa.table({"reward": [1.0, 1.0, 0.0, 0.0, None], "plan.value": [0.5, 1.0, 0.25, 0.0, 0.0]})
    table = table.append_column("plan.before", pa.array([0.5, 0.5, 1.0, 0.5, 0.0]))
    found = right_about_chunks(BatchRows(table), label=label)
    assert found["good_chunks"].tolist() == good
    # verdicts: good, good, bad, bad, unread
    assert found["reward"].tolist() == [1, 1, 1 - good[2], 1, 0]
