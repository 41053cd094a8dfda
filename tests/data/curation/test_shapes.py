"""Shapes against numbers by hand."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradus.components.rows import Rows
from gradus.data.curation.batch import BatchRows, ShapeError
from gradus.data.curation.shapes.answers import (
    empo,
    evol_rl,
    majority_and_novelty,
    polychromic,
    set_scores,
    similarities,
)
from gradus.data.curation.shapes.bundles import bundles
from gradus.data.curation.shapes.gates import band, hpt
from gradus.data.curation.shapes.graded import gdpo, measured
from gradus.data.curation.shapes.judged import win_rate
from gradus.data.curation.shapes.lengths import grpo_lambda
from gradus.data.curation.shapes.selection import best, drop_surplus, majority, most_varied, pods

NAN = np.nan


def texts(*values: str | None) -> Any:
    return np.array(values, dtype=np.object_)


def test_hpt_learns_from_a_group_or_from_its_demonstration() -> None:
    # a: none right, so its demonstration. b: one right. c: none right, and nothing to learn in its place.
    rows = Rows(
        {
            "origin": texts(None, "own", "expert", None, None, "expert", None),
            "group": np.array([0, 0, 0, 1, 1, 1, 2]),
            "correct": np.array([0.0, NAN, 1.0, 1.0, 0.0, 1.0, 0.0]),
        }
    )
    found = hpt(rows)
    assert np.nanmean(found["stuck_frac"]) == 2 / 5  # of the policy's own
    assert found["taken"].tolist() == [False, False, True, True, True, False, True]
    assert found["term"].tolist() == [
        "policy",
        "policy",
        "demonstration",
        "policy",
        "policy",
        "demonstration",
        "policy",
    ]
    assert hpt(rows, solved=1)["taken"].tolist() == [False, False, True, False, False, True, True]


def test_a_band_keeps_groups_between_its_bounds_by_the_policys_own_verdicts() -> None:
    # Rates 1/4 (at the bound), 0, 1/2 (a row without a verdict, and a given one that is right), 4/5; 4 has no verdict.
    verdicts = [[1, 0, 0, 0], [0, 0], [1, 0, NAN, 1], [1, 1, 1, 1, 0], [NAN]]
    group = np.repeat(np.arange(5), [len(each) for each in verdicts])
    origin = [None] * 9 + ["expert"] + ["own"] * 6
    rows = Rows({"group": group, "correct": np.concatenate(verdicts), "origin": texts(*origin)})
    found = band(rows)
    assert np.unique(group[found["taken"]]).tolist() == [0, 2, 4]
    assert {*found["reason"][group == 1]} == {"its group's pass rate is below 0.25"}
    assert {*found["reason"][group == 3]} == {"its group's pass rate is above 0.75"}
    assert band(rows, low=0.0, high=1.0)["taken"].all()


def test_pods_takes_the_best_and_the_worst() -> None:
    # Of 0 0 0 1 1 .5 three: {1, 1, 0} and {1, 0, 0} have variance 2/9; the smallest k is 1. At least two are taken.
    rewards = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 0.5])
    rows = Rows({"group": np.array([3] * 6 + [5] * 3), "reward": np.array([*rewards, 1.0, NAN, 2.0])})
    assert pods(rows, frac=0.5)["taken"].tolist() == [False, True, True, True, False, False, True, False, True]
    assert sorted(most_varied(np.array([0.0, 0.2, 0.3, 0.9, 1.0]), 3).tolist()) == [0, 3, 4]


def test_best_of_n_takes_the_highest_of_each_group_and_of_equal_ones_the_lowest_sample() -> None:
    # Group 1: 0.5 twice, of which sample 1 is lower. Group 4: nothing is known of sample 0. Group 7: of none.
    rows = Rows(
        {
            "group": np.array([4, 1, 1, 1, 4, 7, 7]),
            "sample": np.array([0, 2, 1, 0, 1, 1, 0]),
            "likelihood.logp": np.array([NAN, 0.5, 0.5, -1.0, -9.0, NAN, NAN]),
        }
    )
    found = best(rows, column="likelihood.logp")
    assert found["taken"].tolist() == [False, False, True, False, True, False, True]
    assert found["reason"] == "another of its group is higher in likelihood.logp"


def test_measured_rewards_rows_by_a_column_as_it_stands() -> None:
    rows = Rows({"reward_model.value": np.array([1.5, NAN, -2.0]), "parts.format": np.array([0.0, 1.0, NAN])})
    assert measured(rows)["reward"] == pytest.approx([1.5, NAN, -2.0], nan_ok=True)
    assert measured(rows, column="parts.format")["reward"] == pytest.approx([0.0, 1.0, NAN], nan_ok=True)


def test_the_majority_takes_one_row_of_the_most_frequent_answer_of_each_group() -> None:
    # Group 0: 7 twice, first said by sample 1. Group 1: a tie, sample 0 says 5. Group 2: one answer. Group 3: none.
    rows = Rows(
        {
            "group": np.array([0, 0, 0, 1, 1, 2, 2, 3, 3]),
            "sample": np.array([2, 1, 0, 1, 0, 0, 1, 1, 0]),
            "extracted": texts("7", "7.0", "8", "6", "5", None, "4", None, None),
        }
    )
    taken = majority(rows)["taken"]
    assert np.flatnonzero(taken).tolist() == [1, 4, 6, 8]


@given(st.lists(st.floats(-3, 3, width=16), min_size=1, max_size=7), st.integers(1, 7))
def test_no_other_choice_has_a_larger_variance(rewards: list[float], num: int) -> None:
    values, num = np.array(rewards), min(num, len(rewards))
    best = max(np.var(values[list(chosen)]) for chosen in combinations(range(len(values)), num))
    chosen = most_varied(values, num)
    assert len(set(chosen.tolist())) == num
    assert np.var(values[chosen]) == pytest.approx(best)


def test_grpo_lambda_shortens_where_most_is_right() -> None:
    # Group 0: 2 of 3 right with 10 and 20 tokens, mean 15, std 7.0711: sigmoid(-+0.70711) = 0.33024, 0.66976.
    rows = Rows(
        {
            "group": np.array([0, 0, 0, 1, 1, 1, 2]),
            "correct": np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
            "length": np.array([10, 20, 5, 9, 9, 9, 9]),
            "reward": np.array([1.0, 1.0, 0.1, 1.0, 0.0, 0.0, 0.0]),
        }
    )
    found = grpo_lambda(rows, top_frac=0.34, alpha=0.5)["reward"]
    assert found.tolist() == pytest.approx([1 - 0.5 * 0.330238, 1 - 0.5 * 0.669762, 0.1, 1.0, 0.0, 0.0, 0.0], abs=1e-5)
    both = grpo_lambda(rows, top_frac=0.67, alpha=0.5)["reward"]  # alone among the right ones: z = 0
    assert both.tolist() == pytest.approx([*found[:3], 0.75, 0.0, 0.0, 0.0])


def test_empo_by_hand() -> None:
    rows = Rows({"group": np.array([0] * 4 + [1] * 2), "extracted": texts("1/2", "0.50", "8", None, "1,000", "1000")})
    found = empo(rows)
    assert found["reward"].tolist() == [0.5, 0.5, 0.25, 0.0, 1.0, 1.0]
    assert found["entropy"].tolist() == pytest.approx([1.5 * np.log(2)] * 4 + [0.0] * 2)
    assert found["taken"].tolist() == [True] * 4 + [False] * 2


def test_evol_rl_by_hand() -> None:
    # Majority 7: rows 0, 1, 2, of which 0 and 1 are alike; 8 is alone; the last has no answer.
    alike = np.array([[1, 1, 0.5, 0, 0], [1, 1, 0.5, 0, 0], [0.5, 0.5, 1, 0.2, 0], [0, 0, 0.2, 1, 0], [0, 0, 0, 0, 1]])
    found = majority_and_novelty(["7", "7", "7", "8", None], alike)
    # n of 0 and 1: 1 - (0.75 + 1) / 2 = 0.125, of 2: 1 - (0.5 + 0.5) / 2 = 0.5; so u is 0, 0, 1.
    # The others: 8 has n = 1 - (0 + 0.2) / 2 = 0.9, the last 1: u is 0 and 1, and without an answer it is -1.
    assert found.tolist() == pytest.approx([0.5, 0.5, 1.0, -1.0, -1.0])
    assert similarities(["a b", "A, a", "", "c"])[0].tolist() == pytest.approx([1, 2**-0.5, 0, 0])
    rows = Rows(
        {
            "group": np.array([0, 0, 0]),
            "extracted": texts("7", "7", "8"),
            "completion": texts("x</think>two words", "two words", "other"),
        }
    )
    assert evol_rl(rows)["reward"].tolist() == [0.75, 0.75, -0.75]


def test_polychromic_by_hand() -> None:
    # Answers 7, 7, 8, none of rewards 1, 1, 0, 0; sets of two: score = sum of rewards x distinct answers / 4.
    # Row 0: with 1 (2 x 1), 2 and 3 (1 x 2 each): mean 2 / 4; row 2: 2, 2 and with 3 (0): mean 4/3 / 4.
    rows = Rows(
        {
            "group": np.array([0] * 5 + [1, 2, 2]),
            "reward": np.array([1.0, 1.0, NAN, 0.0, 0.0, 0.5, 1.0, 0.0]),
            "extracted": texts("7", "7", "9", "8", None, "1", "5", "6"),
        }
    )
    found = polychromic(rows, k=2)["reward"]
    assert found.tolist() == pytest.approx([0.5, 0.5, NAN, 1 / 3, 1 / 3, 0.5, 0.5, 0.5], nan_ok=True)
    # A group of four has one set of four or more: 2 / 4 x 3 / 4. A wrong row beside right ones has as much as they.
    assert polychromic(rows, k=9)["reward"][:5].tolist() == pytest.approx(
        [0.375, 0.375, NAN, 0.375, 0.375], nan_ok=True
    )


@given(
    rows=st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.3]), st.integers(0, 3)), min_size=1, max_size=7),
    k=st.integers(2, 5),
)
def test_a_score_is_the_mean_over_all_sets(rows: list[tuple[float, int]], k: int) -> None:
    reward, behaviour, size = (
        np.array([each[0] for each in rows]),
        np.array([each[1] for each in rows]),
        min(k, len(rows)),
    )
    scores = {
        each: reward[[*each]].mean() * len({rows[at][1] for at in each}) / size
        for each in combinations(range(len(rows)), size)
    }
    wanted = [np.mean([score for each, score in scores.items() if at in each]) for at in range(len(rows))]
    numbers = np.unique(behaviour, return_inverse=True)[1]
    found = set_scores(reward, numbers, size)
    assert found.tolist() == pytest.approx(wanted, abs=1e-9)
    assert found.mean() == pytest.approx(np.mean([*scores.values()]))  # so less its mean it is the paper's advantage
    same = {(a, b): score for a, b, score in zip(reward, behaviour, found, strict=True)}
    assert all(same[a, b] == score for a, b, score in zip(reward, behaviour, found, strict=True))


def parts(*values: Mapping[str, float | None]) -> Any:
    return pa.array([[*each.items()] for each in values], pa.map_(pa.string(), pa.float64()))


def test_gdpo_normalises_each_reward_before_it_sums_them() -> None:
    # Group 0: right 1 0 and brief 0.02 0.01, which both are +-1/sqrt(2): sqrt(2), -sqrt(2). Group 1: right is equal,
    # brief 3 1: +-1/sqrt(2). Mean 0, squares 2 x 2 + 2 x 1/2 = 5 over 3. The sum alone would be 1.02, 0.01 and 4, 2.
    values = [(1.0, 0.02), (0.0, 0.01), (1.0, 3.0), (1.0, 1.0)]
    table = pa.table(
        {
            "group": [0, 0, 1, 1, 1],
            "reward": [1.02, 0.01, 4.0, 2.0, None],
            "components": parts(*({"right": a, "brief": b} for a, b in values), {"right": None, "brief": 9.0}),
        }
    )
    std, root = np.sqrt(5 / 3), np.sqrt(0.5)
    found = gdpo(BatchRows(table), std_eps=0.0)["reward"]
    assert found.tolist() == pytest.approx([2 * root / std, -2 * root / std, root / std, -root / std, NAN], nan_ok=True)
    # Weights 2 and 1 of right and brief: 3 and 1 times the root: squares 2 x 9/2 + 2 x 1/2 = 10 over 3.
    heavy = gdpo(BatchRows(table), weights=(2.0, 1.0), std_eps=0.0)["reward"][:4]
    assert heavy.tolist() == pytest.approx([each * root / np.sqrt(10 / 3) for each in (3, -3, 1, -1)])
    with pytest.raises(
        ShapeError, match="3 weights, and the recipe the rewards right, brief: give one for each, or none"
    ):
        gdpo(BatchRows(table), weights=(1.0, 1.0, 1.0))


def test_gdpo_of_one_reward_or_of_rows_without_any() -> None:
    # 1 0 0 0 is 1.5 and three times -0.5 over a std of 1; of squares 3 over 4 (a lone row adds 0) it is sqrt(3/4).
    one = pa.table(
        {
            "group": [0, 0, 0, 0, 1],
            "reward": [1.0, 0.0, 0.0, 0.0, 1.0],
            "components": parts(*({"right": each} for each in (1.0, 0.0, 0.0, 0.0, 1.0))),
        }
    )
    found = gdpo(BatchRows(one), std_eps=0.0)["reward"].tolist()
    assert found == pytest.approx([each / np.sqrt(0.75) for each in (1.5, -0.5, -0.5, -0.5, 0.0)])
    equal = one.slice(1, 3)
    assert gdpo(BatchRows(equal))["reward"].tolist() == [0.0] * 3
    none = pa.table({"group": [0], "reward": pa.nulls(1, pa.float64()), "components": parts({"right": None})})
    assert np.isnan(gdpo(BatchRows(none))["reward"]).all()


@pytest.mark.slow
@given(
    rewards=st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 1.0])), min_size=4, max_size=9),
    scale=st.floats(0.1, 100),
)
def test_gdpo_sums_to_zero_whatever_the_unit_of_a_reward(rewards: list[tuple[int, float]], scale: float) -> None:
    group = np.arange(len(rewards)) % 2
    total = np.zeros(len(rewards))
    for number in (0, 1):
        own = np.array(rewards)[group == number]
        std = np.std(own, axis=0, ddof=1)
        total[group == number] = ((own - own.mean(0)) / np.where(std > 0, std, 1)).sum(1)
    assume(np.abs(total).max() > 0.1)  # else the rewards cancel, and rounding is what is left
    table = {
        "group": group,
        "reward": [1.0] * len(rewards),
        "components": parts(*({"a": scale * a, "b": b} for a, b in rewards)),
    }
    found = gdpo(BatchRows(pa.table(table)), std_eps=0.0)["reward"]
    assert found.tolist() == pytest.approx((total / np.std(total, ddof=1)).tolist(), abs=1e-9)


def test_bundles_sum_the_rows_of_a_number() -> None:
    rows = Rows(
        {
            "group": np.array([0, 0, 1, 1, 2, 2]),
            "reward": np.array([1.0, 0.0, 1.0, 1.0, NAN, 1.0]),
            "sample": np.array([0, 1, 0, 1, 0, 1]),
        }
    )
    found = bundles(rows, np.random.default_rng(0), size=3)
    assert found["reward"].tolist() == pytest.approx([2.0, 2.0, 2.0, 2.0, NAN, 2.0], nan_ok=True)
    assert found["group"].tolist() == [3] * 6
    pairs = bundles(rows, np.random.default_rng(1), size=2)
    sizes = np.bincount(pairs["group"])
    assert sorted(sizes[sizes > 0].tolist()) == [2, 4]
    alone = bundles(rows, np.random.default_rng(1), size=1)
    assert alone["reward"].tolist() == pytest.approx(rows["reward"].tolist(), nan_ok=True)


def test_win_rate_by_hand() -> None:
    # 0 beats 1, 2 beats 0, of 1 and 2 nothing is known; 3 was compared with a row that is not here alone.
    judge = pa.table(
        {
            "use": ["judge"] * 4 + ["critique"],
            "about": [["a", "b"], ["a", "c"], ["b", "c"], ["d", "z"], ["b"]],
            "reward": [1.0, 0.0, None, 1.0, 0.5],
        }
    )
    rows = BatchRows(pa.table({"rollout_id": list("abcd")}), beside=judge)
    assert win_rate(rows)["reward"].tolist() == pytest.approx([0.5, 0.0, 1.0, NAN], nan_ok=True)
    alone = BatchRows(pa.table({"rollout_id": ["a"], "reward": [1.0]}))
    assert np.isnan(win_rate(alone)["reward"]).all()


def test_red_drop_leaves_as_many_rows_below_the_mean_as_above() -> None:
    # One of four right, so one of three wrong stays; more right than wrong; all equal; a row without reward.
    reward = np.array([1, 0, 0, 0, 1, 1, 0, 0.5, 0.5, 3, 1, 1, 1, NAN])
    group = np.array([0] * 4 + [1] * 3 + [2] * 2 + [3] * 5)
    kept: set[tuple[int, ...]] = set()
    for seed in range(20):
        found = drop_surplus(Rows({"group": group, "reward": reward}), np.random.default_rng(seed))
        taken = found["taken"]
        assert [int(taken[group == number].sum()) for number in range(4)] == [2, 3, 2, 3]
        assert taken[[0, 9, 13]].all()
        kept.add(tuple(np.flatnonzero(taken[:4]).tolist()))
    assert kept == {(0, 1), (0, 2), (0, 3)}  # by lot
