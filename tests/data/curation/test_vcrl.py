"""VCRL: the normalised variance at every k of G = 2 to 16, the bank by hand, and what is sampled from it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.candidates import candidates
from gradus.data.curation.round import Round
from gradus.data.curation.shapes.gates import vcrl as shape
from gradus.data.curation.tracked import with_tracked
from gradus.data.curation.trackers.banks import normalised_group_variance, vcrl_bank
from gradus.data.curation.waves.replaying import vcrl as wave
from tests.data.curation.test_trackers import kept, none, rounds

GROUPS = {
    "solved": [1.0, 1.0, 1.0, 1.0],
    "even": [1.0, 1.0, 0.0, 0.0],
    "once": [1.0, 0.0, 0.0, 0.0],
    "unjudged": [None, None],
    "alone": [1.0],
}


@pytest.mark.parametrize("size", range(2, 17))
def test_the_normalised_variance_is_the_unbiased_one_over_the_largest(size: int) -> None:
    largest = max(np.var([1.0] * k + [0.0] * (size - k), ddof=1) for k in range(size + 1))
    for k in range(size + 1):
        reward = [1.0] * k + [0.0] * (size - k)
        found = normalised_group_variance(rounds({"a": reward}).rows)
        assert found == pytest.approx(np.full(size, np.var(reward, ddof=1) / largest))
    # As the paper writes the largest: G / (4 (G - 1)) of an even group, (G + 1) / (4 G) of an odd one.
    assert largest == pytest.approx((size + 1) / (4 * size) if size % 2 else size / (4 * (size - 1)))


def test_graded_rewards_count_within_0_and_1_and_given_rows_do_not() -> None:
    # Four rewards 0, 0.5, 0.5, 1 (2 is clipped): 4 * 0.5 / 4.
    assert normalised_group_variance(rounds({"a": [0.0, 0.5, 0.5, 2.0]}).rows) == pytest.approx([0.5] * 4)
    given = rounds({"a": [1.0, 0.0, 0.0]}, {"origin": [None, None, "expert"]})
    assert normalised_group_variance(given.rows) == pytest.approx([1.0] * 3)


def test_a_problem_enters_the_bank_stays_with_momentum_and_leaves_below_kappa() -> None:
    first = vcrl_bank(none("priority"), rounds(GROUPS), kappa=0.5)
    assert dict(zip(first["problem_id"], first["priority"], strict=True)) == pytest.approx(
        {"even": 1.0, "once": 0.75, "solved": np.nan, "alone": np.nan}, nan_ok=True
    )
    before = kept(problem_id=["even", "once", "away"], priority=[0.8, 0.9, 0.7])
    found = vcrl_bank(before, rounds({"even": [1.0, 1.0, 0.0, 0.0], "once": [0.0] * 4}), kappa=0.5, momentum=0.75)
    # 0.75 * 0.8 + 0.25 * 1; `away` was not sampled, and its row stays as it is.
    assert dict(zip(found["problem_id"], found["priority"], strict=True)) == pytest.approx(
        {"even": 0.85, "once": np.nan}, nan_ok=True
    )


def test_a_problem_at_kappa_is_in_the_bank_and_its_group_is_not_replaced() -> None:
    only = {"once": GROUPS["once"]}
    assert vcrl_bank(none("priority"), rounds(only), kappa=0.75)["priority"] == pytest.approx([0.75])
    assert wave(with_bank(rounds(only), high=0.9), np.random.default_rng(0), kappa=0.75) is None


def test_of_two_groups_of_a_problem_the_mean_counts() -> None:
    round_ = rounds({"a": [1.0, 1.0, 0.0, 0.0], "b": [1.0, 0.0, 0.0, 0.0]}, {"problem_id": ["a"] * 8})
    assert vcrl_bank(none("priority"), round_)["priority"] == pytest.approx([0.875])


def with_bank(round_: Round, **priority: float) -> Round:
    """A round whose problems are those sampled and those of the bank."""
    names = list(dict.fromkeys([*round_.rows.table.column("problem_id").to_pylist(), *priority]))
    pool = candidates(pa.table({"problem_id": names, "question": names}), None)
    bank = kept(problem_id=list(priority), **{"vcrl_bank.priority": list(priority.values())})
    return replace(round_, candidates=with_tracked(pool, {"vcrl_bank.priority": ("problem_id",)}, [bank.table]))


def test_each_group_below_kappa_is_replaced_by_the_highest_priority_that_was_not_sampled() -> None:
    round_ = with_bank(rounds(GROUPS), low=0.4, high=0.9, even=1.0, gone=np.nan)
    # Below 0.8: solved, once and alone; of the bank `even` was sampled, and two are left.
    plan = wave(round_, np.random.default_rng(0), kappa=0.8)
    assert plan is not None
    assert plan.problem_id.to_pylist() == ["high", "low"]
    assert plan.columns["reason"].to_pylist() == ["from the bank: priority 0.900", "from the bank: priority 0.400"]
    assert plan.skipped == {"the bank has no other problem": 1}
    one = wave(with_bank(rounds({"a": [1.0, 1.0]}), low=0.4, high=0.9), np.random.default_rng(0))
    assert one is not None
    assert (one.problem_id.to_pylist(), one.skipped) == (["high"], {})


def test_a_round_whose_groups_all_vary_asks_for_nothing() -> None:
    assert wave(with_bank(rounds({"a": [1.0, 0.0]}), b=0.9), np.random.default_rng(0)) is None


def test_the_groups_at_or_above_kappa_are_learned_from() -> None:
    found = shape(BatchRows(rounds(GROUPS).rows.table), kappa=0.75)
    assert list(found["taken"]) == [False] * 4 + [True] * 4 + [True] * 4 + [True] * 2 + [False]
