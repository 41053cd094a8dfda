"""DPH-RL by hand: the rows that are rehearsed, their term, and the divergences to their sampler."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.candidates import candidates
from gradus.data.curation.round import Round, RoundRows, round_of
from gradus.data.curation.shapes.rehearsed import rehearsed
from gradus.data.curation.waves.rehearsing import rehearse
from gradus.models.objectives.losses.regularising.rehearsal import dph
from gradus.models.objectives.rows import Rows


def the_round(index: int) -> Round:
    """A round after one in which a was always right, b once, c always, but in round 2."""
    known = {
        "rollout_id": ["a0", "a1", "b0", "b1", "c0"],
        "problem_id": list("aabbc"),
        "group": [0, 0, 1, 1, 2],
        "group_id": list("aabbc"),
        "hint_level": pa.nulls(5, pa.int32()),
        "round": [1, 1, 1, 1, 2],
        "correct": [1.0, 1.0, 1.0, 0.0, 1.0],
    }
    earlier = RoundRows(pa.table({**known, "age": [2, 2, 2, 2, 1]}))
    return round_of(pa.table({"problem_id": ["b"], "group": [0]}), index=index, earlier=earlier)


def test_what_was_always_right_in_round_1_is_taken_up_later() -> None:
    plan = rehearse(the_round(3), np.random.default_rng(0))
    assert plan is not None
    assert plan.columns["recall"].to_pylist() == ["a0", "a1"]
    one = rehearse(the_round(3), np.random.default_rng(0), rows=1)
    assert one is not None
    assert one.num_rows == 1


def test_round_1_samples_the_problems_that_the_profile_found_solved() -> None:
    problems = pa.table({"problem_id": list("abc"), "question": list("abc")})
    measured = pa.table({"problem_id": list("ab"), "n": [8, 8], "k": [8, 7]})
    plan = rehearse(replace(the_round(1), candidates=candidates(problems, measured)), np.random.default_rng(0))
    assert plan is not None
    assert (plan.problem_id.to_pylist(), plan.columns["n"].to_pylist()) == (["a"], [1])


def test_rows_taken_up_are_the_term_rehearsal() -> None:
    found = rehearsed(BatchRows(pa.table({"rollout_id": list("xy"), "recall": [None, "a0"]})))
    assert list(found["term"]) == ["policy", "rehearsal"]


def divergence(policy: list[float], sampler: list[float], kind: str) -> tuple[list[float], list[float]]:
    """The loss of each token by the probabilities of both, and its derivative by the policy's log-prob."""
    now = torch.tensor(policy, dtype=torch.float64).log().requires_grad_()
    size = torch.tensor([len(policy)])
    rows = Rows({}, {"now.logp": now, "sampler.logp": torch.tensor(sampler, dtype=torch.float64).log()}, size)
    loss, _ = dph(rows, divergence=kind)  # pyright: ignore[reportArgumentType]
    loss.sum().backward()
    assert now.grad is not None
    return loss.tolist(), now.grad.tolist()


def test_the_generators_by_hand() -> None:
    # u = 2, 1/2, 1. Forward: u - ln u - 1, slope u - 1.
    loss, slope = divergence([0.5, 0.25, 0.3], [0.25, 0.5, 0.3], "forward")
    assert loss == pytest.approx([1 - math.log(2), math.log(2) - 0.5, 0.0])
    assert slope == pytest.approx([1.0, -0.5, 0.0])
    # u ln u - (u + 1) ln((u + 1) / 2), slope u ln(2 u / (u + 1)).
    loss, slope = divergence([0.5, 0.25, 0.3], [0.25, 0.5, 0.3], "js")
    assert loss == pytest.approx([2 * math.log(2) - 3 * math.log(1.5), -0.5 * math.log(2) - 1.5 * math.log(0.75), 0.0])
    assert slope == pytest.approx([2 * math.log(4 / 3), 0.5 * math.log(2 / 3), 0.0])


def test_over_the_samplers_distribution_the_means_are_the_divergences() -> None:
    from scipy.spatial.distance import jensenshannon

    sampler, policy = np.array([0.25, 0.75]), np.array([0.6, 0.4])
    forward, _ = divergence([*policy], [*sampler], "forward")
    assert sampler @ forward == pytest.approx(0.25 * math.log(0.25 / 0.6) + 0.75 * math.log(0.75 / 0.4))
    js, _ = divergence([*policy], [*sampler], "js")
    assert sampler @ js == pytest.approx(2 * jensenshannon(sampler, policy) ** 2)


def test_a_token_that_the_policy_all_but_lost_keeps_the_loss_finite() -> None:
    for kind in ("forward", "js"):
        loss, slope = divergence([1e-30, 1.0], [1.0, 1e-30], kind)
        assert np.isfinite([*loss, *slope]).all()
