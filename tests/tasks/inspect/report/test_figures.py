"""The figures of a report, counted by hand."""

from typing import Any

import numpy as np
import pytest

from gradus.tasks.inspect.report.figures import Figure, figures, mean_of_groups
from gradus.tasks.inspect.report.writing import chosen_groups, flips


@pytest.fixture
def drawn(rows: Any) -> dict[str, Figure]:
    return {figure.key: figure for section in figures(rows).values() for figure in section}


def points(figure: Figure, name: str) -> list[tuple[float, ...]]:
    return [(at, *numbers) for at, numbers in figure.frame[name].items()]


def test_rewards_have_an_interval_over_groups(drawn: dict[str, Figure]) -> None:
    assert list(drawn["reward"].frame) == ["train", "hint2"]
    # Round 1: groups sum to 1, 0, 0 of two each. Resampled means are 0 (8 of 27) to 1/2 (1 of 27, more than 2.5 %).
    # Round 2: sums 2, 1, 0, resampled means from 0 to 1, each end 1 of 27. With hints: sums 1, 0, means 0 to 1/2.
    assert points(drawn["reward"], "train") == [pytest.approx((1, 1 / 6, 0.0, 0.5)), pytest.approx((2, 0.5, 0.0, 1.0))]
    assert points(drawn["reward"], "hint2") == [pytest.approx((1, 0.25, 0.0, 0.5))]


def test_groups_that_all_agree_have_no_interval_instead_of_one_without_width() -> None:
    mean, low, high = mean_of_groups(np.array([[2.0, 2.0]] * 12))
    assert mean == 1.0
    assert np.isnan([low, high]).all()


def test_pass_at_k_is_that_of_the_evaluations(drawn: dict[str, Figure]) -> None:
    assert points(drawn["pass-at-k-sums"], "pass@1") == [(0, 0.25, 0.125, 0.375), (2, 0.25, 0.125, 0.375)]


def test_steps_of_updates_are_summed_up_by_round_without_what_the_whole_stage_says(drawn: dict[str, Figure]) -> None:
    assert points(drawn["entropy"], "policy/entropy") == [(1, 1.0, 0.5, 1.5), (2, 2.0, 1.0, 3.0)]
    assert points(drawn["gradient-norm"], "policy/grad_norm") == [(1, 1.0, 1.0, 1.0), (2, 1.0, 1.0, 1.0)]
    assert "kl" not in drawn


def test_lengths_and_mismatch(drawn: dict[str, Figure]) -> None:
    assert points(drawn["length"], "train") == [(1, 11.5, 11.0, 12.0), (2, 21.5, 21.0, 22.0)]
    assert points(drawn["length"], "eval") == [(0, 1.5, 1.0, 2.0), (2, 21.5, 21.0, 22.0)]
    assert points(drawn["mismatch"], "rows of the update") == [(1, 0.25, 0.25, 0.25), (2, 0.5, 0.5, 0.5)]
    (name,) = drawn["mismatch-reported"].frame
    assert [row[:2] for row in points(drawn["mismatch-reported"], name)] == [(1, 0.125), (2, 0.25)]


def test_maps_are_of_pass_rates_without_hints_the_hardest_first(drawn: dict[str, Figure]) -> None:
    trained, held_out = drawn["difficulty"], drawn["held-out"]
    assert trained.frame == {
        "c": {1: (0.0,), 2: (0.0,)}, "b": {1: (0.0,), 2: (0.5,)}, "a": {1: (0.5,), 2: (1.0,)}
    }  # fmt: skip
    assert (list(trained.frame), trained.rounds) == (["c", "b", "a"], [1, 2])
    assert held_out.frame == {"d": {0: (0.0,), 2: (0.5,)}, "e": {0: (0.5,), 2: (0.0,)}}


def test_hints_are_counted_by_the_level_that_rescued_a_problem(drawn: dict[str, Figure]) -> None:
    assert drawn["hints"].table == [
        ["round", "solved without a hint", "rescued by hint level 2", "not solved"],
        ["1", "1", "1", "1"],
        ["2", "2", "0", "1"],
    ]


def test_costs_by_stage_and_purpose(drawn: dict[str, Figure]) -> None:
    found = {name: row[0] for name, row in drawn["costs-by-stage"].frame.items()}
    assert found["rollout"] == (6.0, 2, 0, 0, 198)
    assert ["rollout", "2", "", "", "6.0", "198"] in drawn["costs-by-stage"].table
    assert found["update"][-1] == 0
    assert sum(cost[-1] for cost in found.values()) == 198 + 46 + 6 + 86
    assert sum(cost[0] for cost in found.values()) == 3.0 * 14


def test_what_was_newly_solved_and_lost_with_its_texts(rows: Any) -> None:
    (found,) = flips(rows)
    assert (found["suite"], found["first_round"], found["last_round"]) == ("sums", 0, 2)
    assert (found["num_solved"], found["num_lost"]) == (1, 1)
    solved, lost = found["shown"]
    assert [(one[0], one[1].key.problem_id) for one in (solved, lost)] == [(True, "d"), (False, "e")]
    assert [group.rollouts[0]["completion"] for group in solved[1:]] == ["d0 of eval 0", "d0 of eval 2"]
    assert [group.rollouts[0]["correct"] for group in lost[1:]] == [True, False]


def test_groups_that_changed_come_first_then_those_of_the_largest_variance_and_none_twice(rows: Any) -> None:
    found = chosen_groups(rows)
    assert [(each.title, len(each.groups)) for each in found] == [("a", 2), ("b", 2), ("b", 1)]
    keys = [group.key for each in found for group in each.groups]
    assert len(set(keys)) == len(keys)
    assert found[0].why == "pass rate +0.50 from round 1 to round 2"


def test_help_costs_tokens_and_what_it_rescued_is_looked_at_without_it(drawn: dict[str, Figure]) -> None:
    accuracy, tokens = drawn["help"], drawn["help-tokens"]
    assert {name: [row[:2] for row in points(accuracy, name)] for name in accuracy.frame} == {
        "with help": [(1, 0.25)],
        "without help, asked both ways": [(1, 0.0)],
        "without help, once rescued": [(2, 0.5)],  # b
    }
    assert [row[:2] for row in points(tokens, "all help")] == [(1, 4 * 2.0)]
