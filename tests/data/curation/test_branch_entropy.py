"""TreePO's branches from a forced pass of entropies, by hand."""

import numpy as np
import pyarrow as pa

from gradus.data.curation.round import round_of
from gradus.data.curation.waves.continuing import branch_entropy


def test_the_token_of_the_highest_entropy_of_a_group_is_sampled_again() -> None:
    rows = pa.table(
        {
            "rollout_id": ["a", "b", "c", "d"],
            "problem_id": ["p", "p", "q", "q"],
            "group": [0, 0, 1, 1],
            "finish_reason": ["stop", "length", "stop", "error"],
            "token_entropy.tokens": pa.array([[0.1, 0.7], [0.2, 0.3, 1.5], [], [9.0]]),
        }
    )
    planned = branch_entropy(round_of(rows), np.random.default_rng(0), n=3)
    assert planned is not None
    columns = {name: values.to_pylist() for name, values in planned.columns.items()}
    assert (planned.problem_id.to_pylist(), columns["branch_at"], columns["n"]) == (["p"], [2], [3])
    assert columns["reason"] == ["token 2 had an entropy of 1.500 nats"]
    assert branch_entropy(round_of(rows.slice(2)), np.random.default_rng(0)) is None
