"""A user's measurements: samples, rates, histories and graded rewards in each form of file, and what is none."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.data.curation.difficulty import complete
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import DIFFICULTY
from gradus.data.sources.tabular import read_user_table

READ = ("problem_id", "n", "k", "pass_rate", "history", "reward_n", "reward_mean", "reward_variance")


def read(path: Path, content: Any) -> list[dict[str, Any]]:
    """The file's measurements as the stages read them."""
    if path.suffix == ".parquet":
        names = {name for row in content for name in row}
        pq.write_table(pa.table({name: [row.get(name) for row in content] for name in names}), path)
    else:
        lines = [json.dumps(row) for row in content] if path.suffix == ".jsonl" else [json.dumps(content, indent=1)]
        path.write_text("\n".join(lines))
    table = read_user_table(path, DIFFICULTY, {})
    return complete(table).select(READ).to_pylist()


ROWS = [
    {"problem_id": "samples", "rewards": [0, 1, 1, 0]},
    {"problem_id": "graded", "rewards": [0.25, 0.75]},
    {"problem_id": "counts", "n": 8, "k": 2},
    {"problem_id": "rate", "pass_rate": 0.25},
    {"problem_id": "history", "history": [0.5, 0.75]},
    {"problem_id": "one", "rewards": [1]},
]
FOUND = [
    ("samples", 4, 2, 0.5, [0.5], 4, 0.5, 0.25),
    ("graded", 0, 0, None, [], 2, 0.5, 0.0625),
    ("counts", 8, 2, 0.25, [0.25], None, None, None),
    ("rate", 0, 0, 0.25, [0.25], None, None, None),
    ("history", 0, 0, 0.75, [0.5, 0.75], None, None, None),
    ("one", 1, 1, 1.0, [1.0], 1, 1.0, 0.0),
]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_rows_come_in_by_what_they_have(tmp_path: Path, suffix: str) -> None:
    assert read(tmp_path / f"mine.{suffix}", ROWS) == [dict(zip(READ, row, strict=True)) for row in FOUND]


OBJECTS = [
    ({"a": [0, 1, 1], "b": [0]}, {"a": (3, 2, 2 / 3), "b": (1, 0, 0.0)}),
    ({"a": [0, 1, 1], "b": [0.5, 0.25]}, {"a": (0, 0, 1.0), "b": (0, 0, 0.25)}),  # histories
    ({"a": [0, 2], "b": [0.5]}, {"a": (0, 0, None), "b": (0, 0, None)}),  # graded
    ({"a": 0.25, "b": 1}, {"a": (0, 0, 0.25), "b": (0, 0, 1.0)}),
    ({"a": {"n": 4, "k": 1}, "b": {"rewards": [True, False]}}, {"a": (4, 1, 0.25), "b": (2, 1, 0.5)}),
]


@pytest.mark.parametrize(("content", "found"), OBJECTS, ids=["samples", "histories", "graded", "rates", "rows"])
@pytest.mark.parametrize("indent", [None, 2])
def test_one_object_holds_all_problems(
    tmp_path: Path, content: dict[str, Any], found: dict[str, tuple[Any, ...]], indent: int | None
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(content, indent=indent))
    table = read_user_table(tmp_path / "mine.json", DIFFICULTY, {})
    rows = complete(table).to_pylist()
    assert {row["problem_id"]: (row["n"], row["k"], row["pass_rate"]) for row in rows} == found


REFUSED = [
    ([{"problem_id": "a", "rewards": "many"}], "rewards is 'many'"),
    ([{"problem_id": "a", "rewards": [0, None]}], "rewards is"),
    ([{"problem_id": "a", "rewards": [10**400]}], "rewards is"),
    ([{"problem_id": "a", "pass_rate": 1.5}], "pass_rate is 1.5"),
    ([{"problem_id": "a", "history": [0.5, 2]}], "history"),
    ([{"problem_id": "a", "history": []}], "no n"),
    ([{"problem_id": "a"}], "no n"),
    ([{"rewards": [0, 1]}, {"rewards": [1]}], "no problem_id"),
    ({"a": "many"}, "a: 'many' is no measurement"),
    ({"a": True, "b": None}, "b: "),
    ([[0, 1]], "row 1: not a JSON object"),
    ([], "no usable row"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_is_no_measurement_is_named(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(content, indent=1))
    with pytest.raises(BadInputError) as caught:
        read_user_table(tmp_path / "mine.json", DIFFICULTY, {})
    assert message in str(caught.value), caught.value


def test_a_key_that_stands_there_twice_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{\n"a": [0, 1],\n"a": [1]\n}')
    with pytest.raises(BadInputError, match="the key a stands there twice"):
        read_user_table(tmp_path / "mine.json", DIFFICULTY, {})
