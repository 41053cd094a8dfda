"""The response surface of a lake: which rollouts count, shares of hints, plans; all numbers by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from gradus.data.curation.surface.known import GROUP, learn
from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.schema import KEY_DIGITS, PLAN, PROBLEMS
from gradus.data.lake.store import Store
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.surface import (
    counted,
    hints_there,
    picture,
    planned,
    problems_named,
    rows_planned,
    write_surface,
    write_tracker,
)
from gradus.tasks.preflight.checks import check_table
from tests.data.curation.test_surface_used import entries, kept, round_with
from tests.tasks.written_lake import WrittenHome

NEW, OLD = "a" * 32, "b" * 32
SOLUTION = "1 + 1 = 2\n2 + 2 = 4\n"  # 20 characters


class House(WrittenHome):
    """A lake whose rollouts have the columns that are given, and 7 tokens each."""

    def sampled(self, digit: str, rows: list[dict[str, Any]], solved: list[bool | None]) -> str:
        names = [f"r{at}" for at in range(len(rows))]
        usual = {"problem_id": "p", "policy": NEW, "temperature": 1.0, "completion": "x", "completion_tokens": [1] * 7}
        columns = dict.fromkeys(key for row in rows for key in row)
        table = [
            {"rollout_id": name, **usual, **dict.fromkeys(columns.keys() - usual), **row}
            for name, row in zip(names, rows, strict=True)
        ]
        ref = self.artifact(f"rollouts/{digit * 32}", table)
        self.judged(digit, ref, solved)
        return ref

    def judged(self, digit: str, rollouts: str, solved: list[bool | None]) -> None:
        names = pa.array([f"r{at}" for at in range(len(solved))])
        rows = pa.table({"rollout_id": names, "correct": pa.array(solved, pa.bool_())})
        rows = rows.append_column("reward", rows.column("correct").cast(pa.float64()))
        rows = rows.append_column("problem_id", pa.array(["p"] * len(solved)))
        self.artifact(f"scores/{digit * 32}", rows, {"rollouts": [rollouts]})

    def counted(self) -> list[tuple[Any, ...]]:
        rows = counted(Home(self.root), pytest.fail).sort_by(
            [(name, "ascending") for name in ("problem_id", "policy", "share")]
        )
        return [tuple(row.values()) for row in rows.drop_columns("domain").to_pylist()]


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_own_answers_to_the_problem_s_own_prompt_count_once_each(house: House) -> None:
    others = [
        {"use": "judge"},
        {"origin": "expert"},
        {"recall": "x:r0"},
        {"parent": "x:r0"},
        {"messages": [{"role": "user", "content": "?"}]},
        {"temperature": 0.0},
    ]
    rollouts = house.sampled(
        "1", [{}, {}, {}, {"completion_tokens": [1] * 3}, *others], [True, True, False, None, *[True] * 6]
    )
    house.judged("2", rollouts, [True, False, False, None, *[True] * 6])  # r1: one of two says right
    house.judged("3", rollouts, [True, False, False, True, *[True] * 6])  # r1: one of three; r3 has a verdict now
    house.sampled(
        "4", [{"policy": None}, {"policy": OLD, "temperature": 0.5}, {"problem_id": "q"}], [False, True, True]
    )
    assert house.counted() == [
        ("p", NEW, 1.0, 0.0, 4, 2, 6.0),
        ("p", OLD, 0.5, 0.0, 1, 1, 7.0),
        ("p", "rollouts/" + "4" * 32, 1.0, 0.0, 1, 0, 7.0),
        ("q", NEW, 1.0, 0.0, 1, 1, 7.0),
    ]


def test_a_copy_in_another_artifact_is_a_further_verdict_of_the_same_rollout(house: House) -> None:
    key = "1" * KEY_DIGITS
    names = [f"{key}:p@r1h0:{at}" for at in range(3)]
    house.sampled("1", [{"rollout_id": name} for name in names], [])
    house.scores("5", "rollouts/" + "1" * 32, dict.fromkeys(names[:2], 1.0))
    house.sampled("2", [{"rollout_id": name} for name in names[1:]], [])  # what a bisection has audited
    house.scores("6", "rollouts/" + "2" * 32, dict.fromkeys(names[1:], 0.0))
    house.scores("7", "rollouts/" + "2" * 32, dict.fromkeys(names[1:], 0.0))
    house.sampled("4", [{"rollout_id": names[0], "policy": None}], [])  # imported: of a policy of its own
    house.scores("8", "rollouts/" + "4" * 32, {names[0]: 1.0})
    assert house.counted() == [
        ("p", NEW, 1.0, 0.0, 3, 1, 7.0),
        ("p", "rollouts/" + "4" * 32, 1.0, 0.0, 1, 1, 7.0),
    ]


def test_a_domain_is_that_of_the_problem(house: House) -> None:
    house.artifact("problems/" + "1" * 32, [{"problem_id": "p", "question": "?", "domain": "sums"}])
    house.sampled("3", [{}, {"problem_id": "q"}], [True] * 2)
    known = learn(
        counted(Home(house.root), pytest.fail), pa.table({"problem_id": ["r", "q"], "domain": ["sums", "other"]})
    )
    assert known.problem_ids.to_pylist() == ["p", "q", "r"]
    assert known.domains.to_pylist() == ["sums", None, "sums"]
    assert known.surface.layout.domain.tolist() == [0, -1, 0]


def test_a_hint_is_a_share_of_the_solution_or_what_its_table_says(house: House) -> None:
    house.artifact("problems/" + "1" * 32, [{"problem_id": "p", "question": "?", "solution": SOLUTION}])
    rows = [
        ("q", 2, 0.4, "think", False),
        ("p", 1, 0.25, "1 + 1 = 2\n", False),
        ("p", 2, 0.5, "1 + 1 = 2\n", False),
        ("p", 3, 0.9, SOLUTION, True),
    ]
    names = ("problem_id", "level", "fraction", "text", "leaks_answer")
    hints = [{"strategy": "prefix", **dict(zip(names, row, strict=True))} for row in rows]
    house.artifact("hints/" + "2" * 32, hints)
    shown = [
        (1, "1 + 1 = 2\n", "p"),
        (1, "x", "p"),
        (1, 9 * SOLUTION, "p"),
        (2, "think", "q"),
        (1, "unknown", "q"),
        (0, None, "q"),
    ]
    sampled = [{"hint_level": level, "hint_text": text, "problem_id": of} for level, text, of in shown]
    house.sampled("3", sampled, [True] * 6)
    assert [(row[0], row[3]) for row in house.counted()] == [
        ("p", 0.05),
        ("p", 0.5),
        ("p", 1.0),
        ("q", 0.0),
        ("q", 0.4),
    ]
    there = hints_there(Home(house.root), pytest.fail).to_pylist()
    assert [(row["problem_id"], row["level"], row["share"]) for row in there] == [("p", 1, 0.5), ("q", 2, 0.4)]


def rows_of(*rows: tuple[str, str, float, int, int]) -> pa.Table:
    names = ("problem_id", "policy", "share", "n", "solved")
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    num = len(rows)
    table = table.append_column("domain", pa.nulls(num, pa.string()))
    return table.append_column("temperature", pa.array([1.0] * num)).append_column("tokens", pa.array([10.0] * num))


def further(*ids: str) -> pa.Table:
    return pa.table({"problem_id": ids, "domain": pa.nulls(len(ids), pa.string())})


FEW = rows_of(
    ("a", NEW, 0.0, 8, 4), ("b", NEW, 0.0, 8, 0), ("b", NEW, 0.5, 8, 4), ("c", NEW, 0.0, 8, 8), ("a", OLD, 0.0, 2, 0)
)


def test_a_policy_is_named_by_the_beginning_of_its_digest_and_the_most_sampled_one_is_usual() -> None:
    known = learn(FEW)
    assert [each.policy for each in known.samplers] == [NEW, OLD]
    assert known.sampler() == known.sampler("aa") == known.sampler(f"checkpoints/{NEW}") == 0
    assert known.sampler("bb") == 1
    with pytest.raises(UsageError, match=f"no scored rollout of the policy c; scored rollouts are of {NEW}, {OLD}"):
        known.sampler("c")
    with pytest.raises(BadInputError, match="no scored rollout with a verdict"):
        learn(FEW.slice(0, 0))


def test_every_problem_has_a_row_for_each_share_and_policy(tmp_path: Path) -> None:
    known = learn(FEW, further("a", "new", "new"))
    rows = {(r["problem_id"], r["share"]): r for r in known.predicted(0).to_pylist()}
    assert list(rows) == [(each, share) for each in ("a", "b", "c", "new") for share in (0.0, 0.5)]
    assert [(rows["b", share]["n"], rows["b", share]["solved"]) for share in (0.0, 0.5)] == [(8, 0), (8, 4)]
    assert rows["new", 0.0]["n"] == 0
    assert rows["new", 0.0]["tokens"] is None
    assert all(0 < r["low"] < r["rate"] < r["high"] < 1 for r in rows.values())
    assert rows["b", 0.0]["rate"] < rows["a", 0.0]["rate"] < rows["c", 0.0]["rate"]
    assert rows["b", 0.5]["rate"] > rows["b", 0.0]["rate"] + 0.1
    width = {name: rows[name, 0.0]["high"] - rows[name, 0.0]["low"] for name in ("a", "new")}
    assert width["new"] > width["a"] + 0.2
    for name in ("out.parquet", "out.csv"):
        assert write_surface(known, tmp_path / name) == 16
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.slice(8).equals(known.predicted(1))
    assert csv.read_csv(tmp_path / "out.csv").num_rows == 16
    for odd in ("x.txt", "none/x.csv"):
        with pytest.raises(UsageError):
            check_table(tmp_path / odd)


def test_a_tracker_begins_with_what_is_known_and_its_first_round_extends_it(tmp_path: Path) -> None:
    known = learn(FEW)
    assert write_tracker(known, 1, tmp_path / "start.parquet") == 3
    table = pq.read_table(tmp_path / "start.parquet")
    assert table.column("p").to_pylist() == pytest.approx(known.chances(1, 0.0).rate)
    rows = {row["problem_id"]: row for row in table.to_pylist()}
    assert (rows["a"]["rounds"], rows["a"]["right"], rows["a"]["wrong"]) == ([-1, 0], [4, 0], [4, 2])
    assert (rows["b"]["shares"], rows["b"]["right"], rows["b"]["lengths"]) == ([0, 0.5], [0, 4], [10, 10])
    sampled = round_with([{"problem_id": "a", "correct": 1.0}], 1, {"a": (9, 9), "b": (9, 9)})
    after = kept([sampled], table.to_pydict())
    assert entries(after)["a"] == [(-1, 0, 4, 4, 10), (0, 0, 0, 2, 10), (1, 0, 1, 0, 10)]  # measured ones are known
    assert entries(after)["b"] == [(-1, 0, 0, 8, 10), (-1, 0.5, 4, 4, 10)]
    assert len(entries(after)) == 3


def test_the_picture_goes_from_easy_to_hard_and_counts_what_is_out_of_reach() -> None:
    hard, easy = ([(f"{name}{at}", NEW, 0.0, n, k) for at in range(20)] for name, n, k in (("h", 400, 0), ("e", 4, 2)))
    known = learn(rows_of(*hard, *easy, ("h0", NEW, 1.0, 400, 200), ("e0", OLD, 0.0, 4, 4)))
    found = picture(known, 0, 1)
    assert found["problems"] == sum(group["problems"] for group in found["groups"]) == 40
    assert found["rollouts"] == 20 * 404 + 404
    rates = [group["rate"] for group in found["groups"]]
    assert rates == sorted(rates, reverse=True)
    assert found["unreached"]["0"] == 20
    assert found["unreached"]["0.75"] < 20
    other = found["against"]
    assert other is not None
    assert other["ahead"] > 0
    assert all(group["against"] > group["rate"] for group in found["groups"] if group["against"] is not None)
    assert picture(learn(FEW.slice(0, 1)), 0, None)["groups"][0]["hinted"] == {}


def test_a_plan_takes_problems_and_hints_that_vary_and_costs_no_more_than_it_may() -> None:
    hints = pa.table(
        {"problem_id": ["x", "b", "b"], "level": [1, 1, 2], "text": ["no", "some", "more"], "share": [0.5, 0.25, 0.5]}
    )
    problems = further("c", "b", "a")
    known = learn(FEW, problems)
    chosen, spent = planned(known, problems, hints, 0, 165.0, (8,))
    plan = rows_planned(chosen, hints, known.samplers[0], 32, 5)
    assert plan.schema.equals(PLAN.arrow)
    rows = plan.to_pylist()
    assert [(r["problem_id"], r["hint_level"], r["hint_text"], r["n"], r["max_tokens"]) for r in rows] == [
        ("b", 2, "more", 8, 32),
        ("a", 0, None, 8, 32),
    ]
    assert [r["group_id"] for r in rows] == ["b@r0h2", "a@r0h0"]
    assert (spent["groups"], spent["rollouts"], spent["tokens"]) == (2, 16, 160)
    chance = sum(known.chances(0, share).signal(8)[list("abc").index(of)] for of, share in (("b", 0.5), ("a", 0.0)))
    assert spent["signal"] == pytest.approx(chance)
    bare = known.chances(0, 0.0).signal(GROUP)[:3].sum()
    assert spent["uniform"] == pytest.approx(3 * 80 / bare)
    assert [(part["share"], part["groups"]) for part in spent["parts"]] == [(0.0, 1), (0.5, 1)]
    with pytest.raises(BadInputError, match="9 tokens are not enough for one group, which takes 80"):
        planned(known, problems, hints, 0, 9.0, (8, 16))
    blind = FEW.set_column(FEW.column_names.index("tokens"), "tokens", pa.nulls(5, pa.float64()))
    with pytest.raises(BadInputError, match="no scored rollout without a hint has token ids"):
        planned(learn(blind), problems, hints, 0, 165.0, (8,))


def test_tokens_of_a_problem_are_its_mean_less_what_a_hint_saves() -> None:
    bare = [("a", NEW, 0.0, 1, 0), ("a", OLD, 0.0, 3, 0), ("b", NEW, 0.0, 4, 0)]
    table = rows_of(*bare, ("b", NEW, 0.5, 1, 0), ("a", NEW, 1.0, 2, 0))

    def expected(*tokens: float | None) -> list[float]:
        place = table.column_names.index("tokens")
        known = learn(table.set_column(place, "tokens", pa.array(tokens, pa.float64())), further("c"))
        return known.expected_tokens(np.array([0, 1, 2, 0, 0]), np.array([0.0, 0.0, 0.0, 0.5, 1.0])).tolist()

    assert expected(10, 30, 5, None, None) == [25, 5, 15, 25, 25]
    # saved is sum n m s (m - t) / sum n (m s)^2 = (2.5 * 1 + 2 * 25 * 15) / (6.25 + 2 * 625)
    assert expected(10, 30, 5, 4, 10) == pytest.approx(
        [25, 5, 15, *(25 - 752.5 / 1256.25 * each for each in (12.5, 25))]
    )
    assert np.isnan(expected(None, None, None, 4, 10)).all()


def test_problems_are_those_of_an_artifact_or_of_a_file_with_ids(house: House, tmp_path: Path) -> None:
    ref = house.artifact("problems/" + "1" * 32, [{"problem_id": "p", "question": "?"}])
    store = Store(Home(house.root).lake)
    assert problems_named(store, ref).column("problem_id").to_pylist() == ["p"]
    empty = house.artifact("problems/" + "2" * 32, PROBLEMS.arrow.empty_table())
    with pytest.raises(BadInputError, match="has no problem"):
        problems_named(store, empty)
    (tmp_path / "own.jsonl").write_text('{"problem_id": "q", "question": "?"}\n')
    assert problems_named(store, str(tmp_path / "own.jsonl")).column("problem_id").to_pylist() == ["q"]
