"""Few problems fill a batch: the order and the number of repeats, and the plan that they make."""

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.candidates import candidates
from gradus.data.curation.plan import plan_rows
from gradus.data.curation.samplers.repeated import repeated


@pytest.mark.parametrize(
    ("rows", "num", "expected"), [(1, 4, [0, 0, 0, 0]), (3, 5, [0, 1, 2, 0, 1]), (3, 2, [0, 1]), (0, 3, []), (2, 0, [])]
)
def test_the_first_comes_again_when_the_last_is_taken(rows: int, num: int, expected: list[int]) -> None:
    pool = candidates(pa.table({"problem_id": pa.array([f"p{i}" for i in range(rows)], pa.string())}), None)
    draw = repeated(pool, num, np.random.default_rng(0))
    assert draw.index.tolist() == expected
    assert draw.weight.tolist() == [1.0] * len(expected)
    assert not draw.explored.any()


def test_each_repeat_is_a_group_with_a_seed_of_its_own() -> None:
    ids = pa.array(["p", "q", "p", "p"])
    plan = plan_rows(ids, reasons=pa.array([""] * 4), round_index=2, n=8, temperature=1.0, max_tokens=16, seed=0)
    assert plan.column("group_id").to_pylist() == ["p@r2h0", "q@r2h0", "p@r2h0.1", "p@r2h0.2"]
    assert len(set(plan.column("seed").to_pylist())) == 4
