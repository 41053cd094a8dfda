"""ReMax by hand: a greedy answer joins each group, its reward is taken from the others, and it is left out."""

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows, Shape, first_batch, judged, shaped
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.probed import remax
from gradus.data.curation.waves.probed import greedy

ROWS = pa.table(
    {
        "rollout_id": [f"r{at}" for at in range(8)],
        "problem_id": ["p", "p", "p", "q", "q", "s", "t", "t"],
        "group_id": ["p", "p", "p", "q", "q", "s", "t", "t"],
        "hint_level": pa.array([0] * 8, pa.int32()),
        "origin": ["own", None, "greedy", None, "greedy", None, None, "greedy"],
        "reward": [1.0, 0.25, 0.5, 0.5, 0.75, 1.0, 1.0, None],
        "correct": [True, False, None, True, None, True, True, None],
    }
)


def test_the_wave_plans_one_greedy_row_of_each_group() -> None:
    rows = pa.table({"problem_id": ["p", "p", "q", "p"], "group": [0, 0, 1, 2], "hint_text": [None, None, "so", None]})
    plan = greedy(round_of(rows), np.random.default_rng(0))
    assert plan is not None
    assert plan.problem_id.to_pylist() == ["p", "q", "p"]
    found = {name: plan.columns[name].to_pylist() for name in ("n", "temperature", "origin", "group", "hint_text")}
    assert found["n"] == [1] * 3
    assert found["temperature"] == [0.0] * 3
    assert found["origin"] == ["greedy"] * 3
    assert found["group"] == ["0", "1", "2"]
    assert found["hint_text"] == [None, "so", None]


def test_the_baseline_is_taken_from_the_group_and_left_out() -> None:
    batch, metrics = shaped(first_batch(ROWS), [Shape("remax", remax, ("group", "reward", "origin"))])
    table = judged(batch)
    assert table.column("reward").to_pylist()[:2] == [0.5, -0.25]
    assert table.column("reward")[3].as_py() == -0.25
    assert table.column("taken").to_pylist() == [True, True, False, True] + [False] * 4
    assert table.column("reason").to_pylist() == [
        None, None, "it is the baseline of its group", None, "it is the baseline of its group",
        *["its group has no baseline"] * 2, "it is the baseline of its group",
    ]  # fmt: skip
    assert metrics == {"batch/remax_baseline": pytest.approx(0.625)}


def test_the_advantage_is_no_other_if_all_rewards_move() -> None:
    def found(more: float) -> list[float]:
        rewards = [more + each for each in (1.0, 0.25, 0.5, 0.5, 0.75)]
        origin = [None, "own", "greedy", None, "greedy"]
        table = pa.table({"reward": rewards, "origin": origin, "group": [0, 0, 0, 1, 1]})
        return remax(BatchRows(table))["reward"].tolist()

    assert found(3.0) == pytest.approx(found(0.0)) == [0.5, -0.25, 0.0, -0.25, 0.0]
