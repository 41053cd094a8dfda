"""SPO-chain by hand: values of cuts, the credit of each token, and the probability mask."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.data.curation.batch import BatchRows, Shape, first_batch, judged, shaped
from gradus.data.curation.by_use import of_use
from gradus.data.curation.shapes.segments import gains, value_gains
from gradus.data.curation.uses import LEARN
from gradus.models.objectives.advantages.credited import credit
from gradus.models.objectives.aggregations.means import token_mean
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.probability import improbable

# a0 (5 tokens, right) has cuts at 2 and 4, a1 (3 tokens, wrong) one of which nothing was judged, b (2 tokens) none.
ROLLOUTS = [("a0", 0, 5, 1.0), ("a1", 0, 3, 0.0), ("b0", 1, 2, 1.0)]
VALUES = [("a0", 2, 0.0), ("a0", 4, 1.0), ("a0", 2, 1.0), ("a0", 4, 1.0), ("a1", 1, None), ("gone", 1, 1.0)]


def table() -> pa.Table:
    num = len(VALUES)
    columns: dict[str, Any] = {
        "rollout_id": [*(name for name, *_ in ROLLOUTS), *(f"v{i}" for i in range(num))],
        "group": [*(group for _, group, *_ in ROLLOUTS), *range(2, 2 + num)],
        "length": [*(length for _, _, length, _ in ROLLOUTS), *[9] * num],
        "reward": [*(reward for *_, reward in ROLLOUTS), *(reward for *_, reward in VALUES)],
        "use": [*[None] * 3, *["value"] * num],
        "about": [*[None] * 3, *([name] for name, *_ in VALUES)],
        "plan.branch_at": [*[None] * 3, *(cut for _, cut, _ in VALUES)],
    }
    return pa.table({**columns, "length": pa.array(columns["length"], pa.int64())})


def test_the_credit_of_a_segment_is_the_change_of_the_value_across_it() -> None:
    found = value_gains(BatchRows(of_use(table(), LEARN), beside=table()))["credit"]
    # a: its group's mean is 1/2, V(2) = 1/2, V(4) = 1, the end 1. b0: the mean is its reward.
    assert [each.tolist() for each in found] == [[0, 0, 0.5, 0.5, 0], [-0.5] * 3, [0, 0]]
    # The credits of the segments' first tokens sum to reward less mean.
    assert found[0][[0, 2, 4]].sum() == 1 - 0.5


def test_a_rollout_without_cuts_has_the_advantage_of_its_group() -> None:
    assert gains(np.zeros(0, np.int64), np.zeros(0), 0.25, 1.0, 3).tolist() == [0.75] * 3
    assert gains(np.zeros(0, np.int64), np.zeros(0), 0.25, 1.0, 0).tolist() == []


def test_credit_stands_in_the_batch_and_an_advantage_reads_it() -> None:
    rows = pa.table(
        {
            "rollout_id": ["x", "y"], "problem_id": ["a", "a"], "group_id": ["g", "g"], "hint_level": [0, 0],
            "origin": pa.nulls(2, pa.string()), "reward": [1.0, 0.0], "correct": [True, False],
        }
    )  # fmt: skip
    given = {"credit": [np.array([0.5, -0.5]), None]}
    batch, _ = shaped(first_batch(rows), [Shape("half", lambda _seen: given)])  # pyright: ignore[reportUnknownLambdaType]
    assert judged(batch).column("credit").to_pylist() == [[0.5, -0.5], None]
    of_tokens = Rows({}, {"credit": torch.tensor([0.5, -0.5, 0.0], dtype=torch.float64)}, torch.tensor([2, 1]))
    assert credit(of_tokens.reading(["credit"], "credit")).tolist() == [0.5, -0.5, 0.0]


def test_the_mask_trains_improbable_tokens_as_a_mean_over_them_alone() -> None:
    logp, mask = torch.tensor([0.5, 0.95, 0.2, 0.1, 0.9]).log(), torch.tensor([1, 1, 1, 0, 1]).bool()
    rows = Rows({}, {"sampler.logp": logp}, torch.tensor([2, 3]), mask)
    weight, metrics = improbable(rows, below=0.8)
    assert weight[mask].tolist() == pytest.approx([2, 0, 2, 0])  # two of four counted tokens
    loss = torch.tensor([1.0, 10.0, 3.0, 0.0, 10.0])
    assert float((token_mean(rows) * weight * loss)[mask].sum()) == pytest.approx((1 + 3) / 2)
    assert metrics["improbable_frac"].tolist() == [1, 0, 1, 1, 0]
    none, _ = improbable(rows, below=0.01)
    assert none.tolist() == [0] * 5
