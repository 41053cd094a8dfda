"""Rollouts to another system's rows and back; files of their own writers; rows of any shape are read or refused."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.exchange.formats import FORMATS
from gradus.data.exchange.row import Exchanged
from gradus.data.exchange.tables import tables_of
from gradus.data.lake.schema import ROLLOUTS, SCORES
from gradus.data.sources.formats import UnusableRowError

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NAME = st.text("abc@:/_-1", min_size=1, max_size=8)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.builds(
    Exchanged,
    prompt=TEXT,
    completion=TEXT,
    round=st.integers(0, 99999),
    problem_id=NAME,
    rollout_id=NAME,
    group_id=NAME,
    sample=st.integers(0, 100),
    answer=st.none() | st.text("abc1", min_size=1, max_size=5),
    reward=st.none() | NUMBER,
    correct=st.none() | st.booleans(),
    finish_reason=st.none() | st.sampled_from(["stop", "length"]),
    hint_level=st.integers(0, 3),
    hint_text=st.none() | TEXT,
)
NOT_CARRIED = {"verl": {}, "trl": {"answer": None, "correct": None}, "trinity": {"answer": None, "correct": None}}
"""What a format has no field for, and what it is read as."""


def through_a_file(rows: list[dict[str, Any]], suffix: str, folder: Path) -> list[dict[str, Any]]:
    """Write rows as a file of a kind, and read them."""
    if suffix == ".jsonl":
        return [json.loads(json.dumps(row, ensure_ascii=False, allow_nan=False).encode()) for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return pq.read_table(folder / "rows.parquet").to_pylist()


@pytest.mark.parametrize("name", sorted(NOT_CARRIED))
@given(rows=st.lists(ROWS, min_size=1, max_size=5))
@settings(max_examples=60)
def test_what_is_written_is_read_back(name: str, rows: list[Exchanged], tmp_path_factory: Any) -> None:
    found = FORMATS[name]
    told = through_a_file([found.write(row) for row in rows], found.suffix, tmp_path_factory.getbasetemp())
    back = [vars(found.read(row)) for row in told]
    wanted = [{**vars(row), **NOT_CARRIED[name]} for row in rows]
    assert back == wanted


@given(rows=st.lists(ROWS, min_size=1, max_size=6))
@settings(max_examples=60)
def test_tables_have_every_row_once_under_ids_of_its_own(rows: list[Exchanged]) -> None:
    tables = tables_of(rows, "verl")
    ids = tables["rollouts"].column("rollout_id").to_pylist()
    assert len(set(ids)) == len(rows) == tables["rollouts"].num_rows
    assert tables["rollouts"].column("completion").to_pylist() == [row.completion for row in rows]
    judged = [row for row in rows if row.reward is not None or row.correct is not None]
    assert (tables["scores"].num_rows if "scores" in tables else 0) == len(judged)
    problems = tables["problems"].column("problem_id").to_pylist()
    assert set(problems) == set(tables["rollouts"].column("problem_id").to_pylist())
    assert len(set(problems)) == len(problems)


def test_rows_without_ids_are_grouped_by_prompt_and_step() -> None:
    rows = [Exchanged("1+1=", str(i), round=step, reward=float(i == 2)) for step in (1, 2) for i in range(2)]
    tables = tables_of([*rows, Exchanged("2+2=", "4", round=2)], "verl")
    groups = tables["rollouts"].column("group_id").to_pylist()
    assert [groups.count(group) for group in dict.fromkeys(groups)] == [2, 2, 1]
    assert tables["rollouts"].column("sample").to_pylist() == [0, 1, 0, 1, 0]
    assert tables["problems"].column("question").to_pylist() == ["1+1=", "2+2="]
    assert tables["scores"].num_rows == 4  # the last has no reward
    assert set(SCORES.arrow.names) == set(tables["scores"].column_names)
    assert set(ROLLOUTS.arrow.names) < set(tables["rollouts"].column_names)


def test_a_problem_is_asked_as_its_rollouts_without_a_hint_were() -> None:
    hinted = Exchanged("hint, 1+1=", "2", problem_id="p", hint_level=2)
    plain = Exchanged("1+1=", "3", problem_id="p")
    assert tables_of([hinted, plain], "trl")["problems"].column("question").to_pylist() == ["1+1="]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
FIELDS = (
    "input",
    "output",
    "gts",
    "score",
    "step",
    "acc",
    "prompt",
    "completion",
    "eid",
    "info",
    "metrics",
    "messages",
)
MORE = ("prompt_tokens", "response_tokens", "logprobs", "ground_truth", "trajectory_json", "group_index", "sample", "x")


@pytest.mark.parametrize("name", sorted(name for name, found in FORMATS.items() if found.fields))
@given(row=st.dictionaries(st.sampled_from([*FIELDS, *MORE]), JSON, max_size=8))
@settings(max_examples=80)
def test_a_row_of_any_shape_is_read_or_refused_with_a_reason(name: str, row: dict[str, Any]) -> None:
    try:
        found = FORMATS[name].read(row)
    except UnusableRowError:
        return
    assert found.reward is None or math.isfinite(found.reward)
    tables_of([found], name)


def test_conversations_are_a_question_and_a_completion_and_nothing_else() -> None:
    assert FORMATS["openai"].write(Exchanged("1+1=", "2", reward=1.0, answer="2")) == {
        "messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    }
