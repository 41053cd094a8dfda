"""The advantage `spo` by hand."""

import pytest
import torch

from gradus.models.objectives.advantages.tracked import spo
from gradus.models.objectives.rows import Rows

NAN = float("nan")


def test_the_reward_over_the_tracked_value_by_hand() -> None:
    # 1 - 0.25, 0 - 0.75, 1 - 0.5 (unknown): 0.75, -0.75, 0.5 have mean 1/6 and std sqrt(0.4305...).
    columns = {"reward": [1.0, 0.0, 1.0, NAN], "spo.value": [0.25, 0.75, NAN, 0.5]}
    rows = Rows({name: torch.tensor(values, dtype=torch.float64) for name, values in columns.items()})
    std = ((0.75**2 + 0.75**2 + 0.5**2) / 3 - 1 / 36) ** 0.5
    wanted = [(0.75 - 1 / 6) / std, (-0.75 - 1 / 6) / std, (0.5 - 1 / 6) / std, 0.0]
    assert spo(rows, std_eps=0.0).tolist() == pytest.approx(wanted)
    assert spo(rows.select(torch.tensor([3]))).tolist() == [0.0]
