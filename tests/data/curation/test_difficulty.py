"""Difficulty: what is counted, what is remembered, what a user's own counts become."""

import statistics

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.curation.candidates import candidates
from gradus.data.curation.difficulty import Measurement, add, complete
from gradus.data.curation.grading import Grades, summarise
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import DIFFICULTY, ROLLOUTS, SCORES, cast_to_schema
from tests.data.curation.tallies import measured as measure


def scores(rows: list[tuple[str, str, bool | None]]) -> pa.Table:
    ids, problems, correct = zip(*rows, strict=True)
    table = pa.table(
        {
            "rollout_id": list(ids),
            "problem_id": list(problems),
            "reward": pa.array([None if c is None else float(c) for c in correct], pa.float64()),
            "correct": pa.array(correct, pa.bool_()),
        }
    )
    return cast_to_schema(table, SCORES)


def rollouts(rows: list[tuple[str, str, int | None, str | None]]) -> pa.Table:
    ids, problems, levels, policies = zip(*rows, strict=True)
    table = pa.table(
        {
            "rollout_id": list(ids),
            "problem_id": list(problems),
            "completion": [""] * len(rows),
            "hint_level": pa.array(levels, pa.int32()),
            "policy": pa.array(policies, pa.string()),
        }
    )
    return cast_to_schema(table, ROLLOUTS)


def measured(counts: dict[str, tuple[int, int]], policy: str | None = None) -> Measurement:
    n, k = (np.array([pair[i] for pair in counts.values()], dtype=np.int64) for i in (0, 1))
    nothing = Grades(np.zeros(len(n), np.int64), np.full(len(n), np.nan), np.full(len(n), np.nan))
    return Measurement(pa.array(counts, pa.string()), n, k, nothing, policy, 0, 0, 0, 0, 0)


def graded(rewards: dict[str, list[float]], policy: str | None = "p", *, verdicts: bool = False) -> Measurement:
    """What rewards measure, right from 0.5 on if there are verdicts; counted without a query, which takes its time."""
    problem = np.repeat(np.arange(len(rewards)), [len(values) for values in rewards.values()])
    flat = np.concatenate([*rewards.values()])
    n, k = (np.bincount(problem, weights, len(rewards)).astype(np.int64) * verdicts for weights in (None, flat >= 0.5))
    grades = summarise(flat, problem, num_groups=len(rewards))
    return Measurement(pa.array(rewards, pa.string()), n, k, grades, policy, len(flat), len(flat), 0, 0, 0)


def test_null_verdicts_count_neither_way() -> None:
    found = measure(scores([("1", "a", True), ("2", "a", None), ("3", "a", False), ("4", "b", None)]))
    assert found.problem_ids.to_pylist() == ["a"]
    assert (found.n.tolist(), found.k.tolist(), found.num_unjudged, found.policy) == ([2], [1], 2, None)


def test_hinted_rollouts_are_left_out() -> None:
    judged = scores([("1", "a", True), ("2", "a", False), ("3", "b", True)])
    sampled = rollouts([("3", "b", 2, "p"), ("1", "a", 0, "p"), ("2", "a", None, "p")])
    bare = measure(judged, sampled)
    assert (bare.problem_ids.to_pylist(), bare.n.tolist(), bare.num_hinted, bare.policy) == (["a"], [2], 1, "p")
    own = pa.array([None, [{"role": "user", "content": "said otherwise"}], None], ROLLOUTS.type_of("messages"))
    bare = measure(judged, sampled.append_column("messages", own))  # row 1 answers a prompt of a wave's
    assert (bare.n.tolist(), bare.k.tolist(), bare.num_hinted) == ([1], [0], 2)


@pytest.mark.parametrize("name", ["parent", "recall"])
def test_rollouts_that_continue_others_or_take_them_up_again_are_left_out(name: str) -> None:
    judged = scores([("1", "a", True), ("2", "a", False), ("3", "b", True)])
    sampled = rollouts([("1", "a", 0, "p"), ("2", "a", 0, "p"), ("3", "b", 0, "p" if name == "parent" else "older")])
    found = measure(judged, sampled.append_column(name, pa.array([None, None, "k"])))
    assert (found.problem_ids.to_pylist(), found.n.tolist(), found.policy) == (["a"], [2], "p")


def test_rows_of_another_model_count_nowhere_and_are_of_no_policy() -> None:
    sampled = rollouts([("1", "a", 0, "p"), ("2", "a", 0, "teacher"), ("3", "a", 0, "p")])
    place = sampled.column_names.index("origin")
    sampled = sampled.set_column(place, "origin", pa.array([None, "teacher", "own"]))
    found = measure(scores([("1", "a", False), ("2", "a", True), ("3", "a", True)]), sampled)
    assert (found.n.tolist(), found.k.tolist(), found.policy) == ([2], [1], "p")


def test_scores_without_rollouts_and_mixed_policies_are_refused() -> None:
    with pytest.raises(BadInputError, match="rollout 'x' has no rollout"):
        measure(scores([("1", "a", True), ("x", "a", True)]), rollouts([("1", "a", 0, "p")]))
    with pytest.raises(BadInputError, match="rollouts of 1 scores are there more than once"):
        measure(scores([("1", "a", True), ("2", "a", True)]), rollouts([("1", "a", 0, "p")] * 2 + [("2", "a", 0, "p")]))
    with pytest.raises(BadInputError, match="2 policies"):
        measure(scores([("1", "a", True)]), rollouts([("1", "a", 0, "p"), ("2", "a", 0, "q")]))


def test_a_users_counts_complete_to_the_full_schema() -> None:
    own = pa.table(
        {
            "problem_id": ["a", "b", "c", "d"],
            "n": [8, 4, 0, 2],
            "k": [3, 4, 0, 1],
            "history": pa.array([[0.25, 0.5, 0.375], None, None, []], pa.list_(pa.float64())),
        }
    )
    rows = complete(own).to_pylist()
    assert complete(own).schema.names == DIFFICULTY.arrow.names
    assert [r["pass_rate"] for r in rows] == [0.375, 1.0, None, 0.5]
    assert [r["variance"] for r in rows] == [0.234375, 0.0, None, 0.25]
    assert [r["history"] for r in rows] == [[0.25, 0.5, 0.375], [1.0], [], []]
    assert [r["policies"] for r in rows] == [[None] * 3, [None], [], []]
    assert [(r["alpha"], r["beta"]) for r in rows] == [(4, 6), (5, 1), (1, 1), (2, 2)]
    assert complete(complete(own)).equals(complete(own))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("n", -1, "0 <= k <= n"),
        ("k", 9, "0 <= k <= n"),
        ("k", None, "no n or no k"),
        ("history", [0.5, 1.5], "no pass rate"),
        ("history", [float("nan")], "no pass rate"),
        ("history", [None], "no pass rate"),
    ],
)
def test_impossible_counts_name_their_row(column: str, value: object, message: str) -> None:
    row = {"problem_id": "bad one", "n": 8, "k": 4, "history": [0.5]} | {column: value}
    good = {"problem_id": "good", "n": 8, "k": 4, "history": [0.5]}
    with pytest.raises(BadInputError, match=f"'bad one'.*{message}"):
        complete(pa.Table.from_pylist([good, row]))


def test_a_users_table_can_be_added_to() -> None:
    own = pa.table({"problem_id": ["b", "a"], "n": [8, 8], "k": [2, 4]})
    table = add(measured({"a": (4, 4)}, "p"), own, round_index=3)
    assert table.column("problem_id").to_pylist() == ["b", "a"]
    assert table.column("history").to_pylist() == [[0.25], [0.5, 1.0]]
    assert table.column("policies").to_pylist() == [[None], [None, "p"]]
    assert table.column("last_round").to_pylist() == [None, 3]


_MEASURED = st.dictionaries(
    st.sampled_from("abcd"), st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=4
)


@pytest.mark.slow
@given(st.lists(st.tuples(_MEASURED, st.sampled_from(["p", "q", None])), max_size=5))
@settings(max_examples=50)
def test_adding_equals_bookkeeping_by_hand(rounds: list[tuple[dict[str, tuple[int, int]], str | None]]) -> None:
    table, expected = None, {}
    for index, (counts, policy) in enumerate(rounds):
        table = add(measured(counts, policy), table, round_index=index)
        for problem, (n, k) in counts.items():
            row = expected.setdefault(problem, {"n": 0, "k": 0, "history": [], "policies": [], "alpha": 1, "beta": 1})
            pooled = policy is not None and row["policies"] and row["policies"][-1] == policy
            row["n"], row["k"] = (row["n"] + n, row["k"] + k) if pooled else (n, k)
            row["history"].append(k / n)
            row["policies"].append(policy)
            row["alpha"], row["beta"], row["last_round"] = row["alpha"] + k, row["beta"] + n - k, index
    rows = {} if table is None else {r["problem_id"]: r for r in table.to_pylist()}
    assert list(rows) == list(expected)
    for problem, row in expected.items():
        rate = row["k"] / row["n"]
        row |= {"pass_rate": rate, "variance": rate * (1 - rate)}
        assert {name: rows[problem][name] for name in row} == row


def test_candidates_keep_the_order_of_the_problems_and_mark_the_unmeasured() -> None:
    problems = pa.table({"problem_id": ["c", "a", "b"], "question": ["?", "?", "?"]})
    table = candidates(problems, pa.table({"problem_id": ["b", "c", "zzz"], "n": [4, 0, 4], "k": [1, 0, 4]}))
    assert table["problem_id"].tolist() == ["c", "a", "b"]
    np.testing.assert_array_equal(table["pass_rate"], [np.nan, np.nan, 0.25])
    assert table["n"].tolist() == [0, 0, 4]
    assert [each.tolist() for each in candidates(problems, None)["history"]] == [[], [], []]


def test_a_difficulty_table_that_names_no_problem_is_a_mistake() -> None:
    problems = pa.table({"problem_id": ["a"], "question": ["?"]})
    with pytest.raises(BadInputError, match=r"none of the 1 difficulty rows.*'x'.*'a'"):
        candidates(problems, pa.table({"problem_id": ["x"], "n": [1], "k": [1]}))


def test_mean_and_variance_of_graded_rewards_stand_beside_no_verdict() -> None:
    row = add(graded({"a": [0.2, 0.4, 0.9]}), None, round_index=4).to_pylist()[0]
    assert (row["n"], row["k"], row["pass_rate"], row["history"], row["policies"]) == (0, 0, None, [], [])
    assert (row["reward_n"], row["reward_policy"], row["last_round"]) == (3, "p", 4)
    # mean 1.5 / 3; squares 0.09 + 0.01 + 0.16 = 0.26, divided by 3 (population)
    assert row["reward_mean"] == pytest.approx(0.5, abs=1e-15)
    assert row["reward_variance"] == pytest.approx(0.26 / 3, abs=1e-15)


def test_equal_rewards_have_no_variance_at_all() -> None:
    row = add(graded({"a": [0.1] * 7}), None, round_index=0).to_pylist()[0]
    assert (row["reward_mean"], row["reward_variance"]) == (0.1, 0.0)  # 0.1 summed seven times is not 0.7


def test_the_reward_columns_describe_the_newest_policy_and_verdicts_do_so_apart() -> None:
    first = add(graded({"a": [0.0, 1.0], "b": [0.25]}, "p0", verdicts=True), None, round_index=0)
    later = add(graded({"a": [0.3, 0.5]}, "p1"), first, round_index=1)
    a, b = later.to_pylist()
    assert (a["n"], a["k"], a["policies"]) == (2, 1, ["p0"])  # no verdict came with p1
    assert (a["reward_n"], a["reward_mean"], a["reward_policy"], a["last_round"]) == (2, 0.4, "p1", 1)
    assert (b["reward_n"], b["reward_mean"], b["reward_policy"], b["last_round"]) == (1, 0.25, "p0", 0)


def test_a_table_without_the_reward_columns_is_read_and_added_to() -> None:
    old = complete(pa.table({"problem_id": ["a", "b"], "n": [8, 8], "k": [2, 4]}))
    assert old.column("reward_n").null_count == 2
    a, b = add(graded({"a": [0.5, 1.0]}, None), old, round_index=1).to_pylist()
    assert (a["reward_n"], a["reward_mean"], a["reward_variance"], a["n"]) == (2, 0.75, 0.0625, 8)
    assert (b["reward_n"], b["reward_mean"], b["reward_variance"]) == (None, None, None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward_n": -1}, "a negative reward_n"),
        ({"reward_mean": None}, "no finite reward_mean"),
        ({"reward_mean": float("inf")}, "no finite reward_mean"),
        ({"reward_variance": -0.1}, "no finite reward_variance"),
    ],
)
def test_impossible_reward_columns_name_their_row(changed: dict[str, object], message: str) -> None:
    row = {"problem_id": "bad one", "n": 0, "k": 0, "reward_n": 2, "reward_mean": 0.5, "reward_variance": 0.25}
    with pytest.raises(BadInputError, match=f"'bad one'.*{message}"):
        complete(pa.Table.from_pylist([row | changed]))


_REWARDS = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6)
_BATCHES = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abc"), _REWARDS, min_size=1), st.sampled_from(["p", "q", None])),
    min_size=1,
    max_size=5,
)


@pytest.mark.slow
@given(_BATCHES)
@settings(max_examples=100)
def test_merged_mean_and_variance_are_those_of_all_rows_of_the_newest_policy(
    batches: list[tuple[dict[str, list[float]], str | None]],
) -> None:
    table, rows, newest = None, {}, {}
    for index, (rewards, policy) in enumerate(batches):
        table = add(graded(rewards, policy), table, round_index=index)
        for problem, values in rewards.items():
            same = policy is not None and newest.get(problem) == policy
            rows[problem] = [*(rows[problem] if same else []), *values]
            newest[problem] = policy
    assert table is not None
    found = {row["problem_id"]: row for row in table.to_pylist()}
    assert set(found) == set(rows)
    for problem, values in rows.items():
        row = found[problem]
        assert row["reward_n"] == len(values)
        assert row["reward_mean"] == pytest.approx(statistics.fmean(values), rel=1e-12, abs=1e-9)
        assert row["reward_variance"] == pytest.approx(statistics.pvariance(values), rel=1e-9, abs=1e-9)
