"""AttnRL's expansion by difficulty: ceil(G exp(-accuracy)), by hand."""

import numpy as np
import pyarrow as pa

from gradus.data.curation.round import round_of
from gradus.data.curation.waves.continuing import branch_hard


def test_hard_groups_are_expanded_more() -> None:
    # Of four rollouts: none right ceil(4) = 4, half of them ceil(2.43) = 3, all ceil(1.47) = 2.
    rows = pa.table(
        {
            "problem_id": np.repeat(["hard", "even", "easy"], 4),
            "group": np.repeat([0, 1, 2], 4),
            "correct": [0.0] * 4 + [1.0, 0.0, 1.0, 0.0] + [1.0] * 4,
            "finish_reason": ["stop"] * 12,
            "logprobs": [[-0.1, -float(1 + row % 4)] for row in range(12)],
        }
    )
    planned = branch_hard(round_of(rows), np.random.default_rng(0), n=2)
    assert planned is not None
    columns = {name: values.to_pylist() for name, values in planned.columns.items()}
    assert columns["parent"] == ["0", "1", "2", "3", "5", "6", "7", "10", "11"]  # the least certain of each group
    assert set(columns["branch_at"]) == {1}
    assert set(columns["n"]) == {2}
    assert columns["reason"][:2] == ["token 1 had probability 0.368", "token 1 had probability 0.135"]


def test_rollouts_without_a_verdict_count_nowhere_and_failed_ones_are_not_continued() -> None:
    rows = pa.table(
        {
            "problem_id": ["p"] * 4,
            "group": [0] * 4,
            "correct": [1.0, None, 0.0, None],
            "finish_reason": ["stop", "stop", "stop", "error"],
            "logprobs": [[-1.0], [-3.0], [-2.0], [-9.0]],
        }
    )
    planned = branch_hard(round_of(rows), np.random.default_rng(0))
    assert planned is not None
    assert planned.columns["parent"].to_pylist() == ["1", "2"]  # ceil(2 exp(-1/2)) = 2
    assert branch_hard(round_of(rows.slice(3)), np.random.default_rng(0)) is None
