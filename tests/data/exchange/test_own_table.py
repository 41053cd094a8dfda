"""A user's own table of rollouts: pass rates, rewards and lengths by problem, and the first row that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.data.curation.difficulty import add
from gradus.data.errors import BadInputError, UsageError
from gradus.data.exchange.tables import with_lengths
from gradus.data.sources.problems import problems_table
from gradus.data.sources.reading import Refused, read_rows
from gradus.tasks.artifacts.resolve import write_rows
from gradus.tasks.inspect.exchange.rollouts import check_source, read_incoming
from gradus.tasks.preflight.checks import check_table
from tests.data.curation.tallies import measured

PROBLEMS = pa.table({"problem_id": ["p", "7"], "question": ["1 + 1 =", "2 + 2 ="]})
KINDS = (".parquet", ".jsonl")
GOOD: dict[str, Any] = {"problem_id": "p", "reward": 1.0}


def written(folder: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder / "rows.jsonl"


def read(path: Path, problems: pa.Table | None = PROBLEMS, **columns: str) -> dict[str, pa.Table]:
    return read_incoming(path, "table", columns, problems=problems)[0]


def difficulty(found: dict[str, pa.Table]) -> list[tuple[Any, ...]]:
    table = with_lengths(add(measured(found["scores"], found["rollouts"]), None, round_index=0), found["rollouts"])
    names = ("problem_id", "n", "k", "reward_mean", "mean_tokens", "mean_characters")
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


def test_pass_rates_rewards_and_lengths_by_problem(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"problem_id": "p", "reward": 0.5, "correct": True, "completion": "abcd", "completion_tokens": [1, 2, 3]},
        {"problem_id": "p", "reward": 0.25, "correct": 0, "completion": "ab", "completion_tokens": [1]},
        {"problem_id": "p", "reward": 0.0, "correct": False, "completion": None},
        {"question": " 2 + 2  =", "reward": 1, "correct": 1},  # spaces and case apart
        {"problem_id": 7, "correct": False},
    )
    found = read(path)
    assert difficulty(found) == [("p", 3, 1, 0.25, 2.0, 3.0), ("7", 2, 1, 0.5, None, None)]
    assert found["rollouts"].column("completion").to_pylist() == ["abcd", "ab", None, None, None]
    assert found["rollouts"].column("sample").to_pylist() == [0, 1, 2, 0, 1]
    assert len(set(found["rollouts"].column("rollout_id").to_pylist())) == 5


def test_parquet_and_other_names_are_read_alike(tmp_path: Path) -> None:
    rows = [{"id": "p", "score": 1.0, "draw": at} for at in (3, 1)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = read(tmp_path / "rows.parquet", problem_id="id", reward="score", sample="draw")
    assert found["rollouts"].column("sample").to_pylist() == [3, 1]
    assert difficulty(found) == [("p", 2, 2, 1.0, None, None)]


def test_a_hint_level_that_is_written_as_a_fraction_counts_as_one(tmp_path: Path) -> None:
    rows = [{"problem_id": "p", "correct": True, "hint_level": level} for level in (2.0, None)]  # as pandas writes them
    found = read(written(tmp_path, *rows))
    assert found["rollouts"].column("hint_level").to_pylist() == [2, 0]
    assert difficulty(found)[0][:3] == ("p", 1, 1)


def test_rewards_of_0_and_1_alone_are_verdicts_and_others_are_not(tmp_path: Path) -> None:
    rows = [{"problem_id": "p", "reward": value} for value in (0, 1, True)]
    assert difficulty(read(written(tmp_path, *rows)))[0][1:3] == (3, 2)
    found = read(written(tmp_path, *rows, {"problem_id": "p", "reward": 0.5}))
    assert found["scores"].column("correct").null_count == 4
    at_half = read_incoming(tmp_path / "rows.jsonl", "table", {}, correct_at=0.5, problems=PROBLEMS)[0]
    assert difficulty(at_half)[0][1:3] == (4, 3)


def test_questions_alone_have_the_ids_that_ingest_makes(tmp_path: Path) -> None:
    path = written(tmp_path, {"question": "3 + 4 =", "answer": "7", "reward": 1.0})
    ingested = problems_table(
        read_rows(path, Refused()), Refused(), name="x", format_name="plain", columns={}, strict=True
    )
    found = read(path, None)
    for table in ("problems", "rollouts"):
        assert found[table].column("problem_id").to_pylist() == ingested.column("problem_id").to_pylist()
    assert found["problems"].column("answer").to_pylist() == ["7"]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"problem_id": "q", "reward": 1}, "line 2: q is none of the 2 problems"),
        ({"question": "what", "reward": 1}, "line 2: its question is that of none of the 2 problems"),
        ({"reward": 1}, "line 2: no problem_id and no question"),
        ({"problem_id": [1], "reward": 1}, "line 2: problem_id is neither a text nor a whole number"),
        ({"problem_id": "p", "score": 1}, "line 2: no reward and no correct"),
        ({"problem_id": "p", "reward": float("nan")}, "line 2: reward is nan"),
        ({"problem_id": "p", "reward": float("-inf")}, "line 2: reward is -inf"),
        ({"problem_id": "p", "reward": "1"}, "line 2: reward is not a number"),
        ({"problem_id": "p", "reward": 10**400}, "line 2: reward is not a number"),
        ({"problem_id": "p", "reward": 1, "hint_level": -1}, "line 2: hint_level is not a whole number from 0 on"),
        ({"problem_id": "p", "reward": 1, "hint_text": 5}, "line 2: hint_text is not a text"),
        ({"problem_id": "p", "correct": 0.5}, "line 2: correct is neither true nor false"),
        ({"problem_id": "p", "reward": 1, "sample": -1}, "line 2: sample is not a whole number from 0 on"),
        ({"problem_id": "p", "reward": 1, "completion": 5}, "line 2: completion is not a text"),
        ({"problem_id": "p", "reward": 1, "completion_tokens": ["a"]}, "line 2: completion_tokens is not a list"),
        ('{"problem_id": "p", "reward"', "line 2: not valid JSON"),
        ("[1]", "line 2: not a JSON object"),
    ],
)
def test_the_first_row_that_cannot_be_used_is_named(row: Any, sentence: str, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, row, GOOD)
    with pytest.raises(BadInputError) as raised:
        read(path)
    assert raised.value.message.startswith(f"{path} {sentence}")


def test_a_sample_twice_is_refused_with_both_places_and_another_round_is_another_sample(tmp_path: Path) -> None:
    row = {**GOOD, "sample": 0}
    path = written(tmp_path, row, {**row, "round": 1}, row)
    with pytest.raises(BadInputError, match=r"line 3: sample 0 of p was there before: .* line 1"):
        read(path)


def test_a_missing_column_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as raised:
        read(written(tmp_path, {"problem_id": "p", "points": 1}))
    assert raised.value.hint is not None
    assert "--map" in raised.value.hint
    assert raised.value.hint.endswith("its columns are problem_id, points")
    with pytest.raises(BadInputError, match="holds no rows"):
        read(written(tmp_path))


def test_a_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem_id": ["p", "p"], "reward": [1.0, float("nan")]}), tmp_path / "rows.parquet")
    with pytest.raises(BadInputError, match=r"rows\.parquet row 2: reward is nan"):
        read(tmp_path / "rows.parquet")


def test_problems_go_with_an_own_table_and_its_difficulty_to_a_file_of_two_kinds(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    check_source(path, "table", None, None, problems="x")
    with pytest.raises(UsageError, match="--problems goes with --from table"):
        check_source(path, "verl", None, None, problems="x")
    for name, fault in (("x.csv", "ends in .csv"), ("no/x.jsonl", "there is no folder")):
        with pytest.raises(UsageError, match=fault):
            check_table(tmp_path / name, kinds=KINDS)
    table = pa.table({"problem_id": ["p"], "mean_tokens": pa.array([None], pa.float64())})
    for suffix in (".jsonl", ".parquet"):
        check_table(tmp_path / f"out{suffix}", kinds=KINDS)
        write_rows(table, tmp_path / f"out{suffix}")
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"problem_id": "p", "mean_tokens": None}
    assert pq.read_table(tmp_path / "out.parquet").equals(table)


def test_mean_lengths_are_of_all_completions_of_a_problem_one_too() -> None:
    rollouts = pa.table(
        {
            "problem_id": ["b", "a", "b", "c"],
            "completion_tokens": pa.array([[1], [1, 2, 3], [1, 2, 3, 4], None], pa.list_(pa.int32())),
            "completion": ["x", "four", None, "é!"],
        }
    )
    found = with_lengths(pa.table({"problem_id": ["a", "b", "c", "d"]}), rollouts)
    assert found.column("mean_tokens").to_pylist() == [3.0, 2.5, None, None]
    assert found.column("mean_characters").to_pylist() == [4.0, 1.0, 2.0, None]
