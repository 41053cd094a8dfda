"""GAIN-RL's rank that moves on, and the draw around it, by hand."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import Rows
from gradus.data.curation.round import round_of
from gradus.data.curation.samplers.curriculum import gain_rl as draw
from gradus.data.curation.tracked import Tracked
from gradus.data.curation.trackers.progress import gain_rl


def moved(correct: list[Any], angle: list[Any], mu: float | None = None, step: float = 500.0) -> float:
    columns = {"correct": pa.array(correct, pa.float64()), "angles.concentration": pa.array(angle, pa.float64())}
    num, nobody = len(correct), pa.nulls(len(correct), pa.string())
    rows = pa.table({"problem_id": ["a"] * num, "group": [0] * num, "origin": nobody, **columns})
    before = Tracked(pa.table({"mu": pa.array([] if mu is None else [mu], pa.float64())}))
    return gain_rl(before, round_of(rows), step=step)["mu"][0]


def test_accuracy_and_concentration_move_the_rank_within_bounds() -> None:
    # Accuracy 3/4 and concentration 1/2: 500 tanh(0.5) + 500 tanh(1) = 231.06 + 380.80.
    assert moved([1, 1, 1, 0, None], [0.5, 0.5, 0.5, 0.5, 0.5], mu=100.0) == pytest.approx(100 + 231.0586 + 380.7971)
    assert moved([0.0], [-1.0]) == 0.0  # never back
    assert moved([1.0], [1.0], step=10.0) == pytest.approx(10 * math.tanh(1) + 10 * math.tanh(2))
    assert moved([None], [0.5], mu=7.0) == 7.0


def test_a_draw_is_a_gaussian_over_ranks() -> None:
    angle = np.array([0.1, 0.9, np.nan, 0.5])  # ranks 2, 0, 3, 1
    rows = Rows({"angles.concentration": angle, "gain_rl.mu": np.full(4, np.nan)})
    near = draw(rows, 2, np.random.default_rng(0), sigma=0.05)
    assert (near.index.tolist(), near.explored.tolist()) == ([1, 3], [False, False])
    later = Rows({"angles.concentration": angle, "gain_rl.mu": np.full(4, 3.0)})
    assert draw(later, 1, np.random.default_rng(0), sigma=0.05).index.tolist() == [2]
    counts = np.zeros(4)
    rng = np.random.default_rng(1)
    for _ in range(4000):
        counts[draw(rows, 1, rng, sigma=1.0).index[0]] += 1
    weights = np.exp([-2.0, 0.0, -4.5, -0.5])  # exp(-rank^2 / 2)
    assert counts / 4000 == pytest.approx(weights / weights.sum(), abs=0.03)
