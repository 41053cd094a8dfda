"""Guide-GRPO by hand: the groups that are guided, and the ratio of what was sampled with a hint."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.data.curation.round import round_of
from gradus.data.curation.waves.guided import guide
from gradus.models.objectives.losses.guided import guided
from gradus.models.objectives.rows import Rows


def test_groups_that_failed_whole_are_guided_and_the_new_rows_join_them() -> None:
    # a failed; b was solved once; of c one row was not judged; d failed without a hint; the hint of e says too much.
    rows = pa.table(
        {
            "problem_id": list("aabbccddee"),
            "group": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
            "correct": [0.0, 0.0, 0.0, 1.0, 0.0, None, 0.0, 0.0, 0.0, 0.0],
            "problem.question": [f"{name}?" for name in "aabbccddee"],
            "problem.messages": pa.nulls(10),
        }
    )
    hints = pa.table(
        {
            "problem_id": [*"abce", "a"],
            "level": [1, 1, 1, 1, 2],
            "text": ["first", "x", "x", "it is 5", "second"],
            "leaks_answer": [False, False, False, True, False],
        }
    )
    plan = guide(round_of(rows, hints=hints), np.random.default_rng(0), template="{question} {hint}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert (plan.problem_id.to_pylist(), found["group"]) == (["a"], ["0"])
    assert found["messages"] == [[{"role": "user", "content": "a? first"}]]
    assert (found["trained_prompt"], found["origin"], "n" in found) == (["problem"], ["guided"], False)
    assert {reason: count for reason, count in plan.skipped.items() if count} == {
        "no hint of level 1": 1,
        "the hint states the answer": 1,
    }


def test_the_ratio_is_to_what_was_sampled_with_the_hint() -> None:
    # With the hint 0.8, 0.25 and 0.2, without it 0.4, 0.5 and 0.1: ratios 0.5, 2 and 0.5, bounds 0.8 and 1.25.
    now = torch.tensor([0.4, 0.5, 0.1]).log().requires_grad_()
    tokens = {"now.logp": now, "sampler.logp": torch.tensor([0.8, 0.25, 0.2]).log(), "old.logp": now.detach()}
    rows = Rows({}, {**tokens, "advantage": torch.tensor([1.0, 1.0, -1.0])}, torch.tensor([3]))
    loss, metrics = guided(rows.reading(["now.logp", "sampler.logp", "advantage"], "guided"), clip_high=0.25)
    assert loss.tolist() == pytest.approx([-0.5, -1.25, 0.8])
    assert metrics["ratio_mean"].tolist() == pytest.approx([0.5, 2.0, 0.5])
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([-0.5, 0.0, 0.0])
