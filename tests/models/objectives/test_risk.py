"""The advantage `range_var` by hand."""

import pytest
import torch

from gradus.models.objectives.advantages.risk import range_var
from gradus.models.objectives.rows import Rows


def rows(*rewards: float, group: list[int] | None = None) -> Rows:
    of = torch.tensor(group or [0] * len(rewards))
    return Rows({"reward": torch.tensor(rewards, dtype=torch.float64), "group": of})


def test_a_reward_is_placed_between_two_quantiles_by_hand() -> None:
    # 0 .. 9: the quantile at 0.2 is 1, at 0.8 it is 7; [max(S - 1, 0) - max(S - 7, 0) + 1 - 7] / 0.6.
    found = range_var(rows(*range(10)), low=0.2, high=0.8)
    assert found.tolist() == pytest.approx([-10, -10, *((s - 7) / 0.6 for s in range(2, 8)), 0, 0])
    # With weight 1 on the tail: below 1 also -(1 - S) / 0.2, and all divided by 2.
    tailed = range_var(rows(*range(10)), low=0.2, high=0.8, tail=1.0)
    assert tailed.tolist() == pytest.approx([(-10 - 5) / 2, *(value / 2 for value in found[1:].tolist())])


def test_repeated_rows_equal_groups_and_missing_rewards() -> None:
    once, twice = range_var(rows(0, 1, 3, 4, 7)), range_var(rows(0, 0, 1, 1, 3, 3, 4, 4, 7, 7))
    assert twice[::2].tolist() == pytest.approx(once.tolist())
    found = range_var(rows(2, 2, float("nan"), 0, 1, group=[0, 0, 1, 1, 1]))
    assert found.tolist() == pytest.approx([0, 0, 0, -1 / 0.8, 0])
