"""DOTS by hand: predicted pass rates, the draw around a target, the reference set, the shifted clip."""

import math

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.components.rows import Lists
from gradus.data.curation.batch import BatchRows
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.probed import without_first
from gradus.data.curation.waves.probed import dots, predicted, vectors_of
from gradus.models.objectives.corrections.truncated import token_truncated
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.rows import Rows

FOUR = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


def test_a_prediction_is_the_mean_of_the_reference_set_by_similarity() -> None:
    # Cosines 1 and -1, with sharpness log(3) / 2: weights 3 to 1. Two references fit no line.
    rate, reference = np.array([1.0, 0.0]), np.array([0, 1])
    found = predicted(FOUR, reference, rate, math.log(3) / 2)
    assert found.tolist() == pytest.approx([0.75, 0.25, 0.5, 0.5])
    # The mean of all vectors is taken off; a problem without one has the mean rate.
    moved = np.concatenate((FOUR + np.array([5.0, -2.0]), [[np.nan, np.nan]]))
    assert predicted(moved, reference, rate, math.log(3) / 2).tolist() == pytest.approx([0.75, 0.25, 0.5, 0.5, 0.5])
    assert predicted(moved, np.array([4]), np.array([0.25]), 1.0).tolist() == [0.25] * 5


def test_a_line_is_fitted_to_what_each_reference_is_predicted_from_the_others() -> None:
    # Two clusters: 1 and 0.8 predict 0.8 and 1 of each other, 0 and 0.2 likewise. Slope 0.15 / 0.17, mean 0.5.
    vectors = np.array([[1.0, 0], [1, 0], [-1, 0], [-1, 0], [1, 0], [-1, 0]])
    rate = np.array([1.0, 0.8, 0.0, 0.2])
    found = predicted(vectors, np.arange(4), rate, 100.0)
    assert found[4:].tolist() == pytest.approx([0.5 + 0.15 / 0.17 * 0.4, 0.5 - 0.15 / 0.17 * 0.4])
    # Without similarity each is predicted worse, the higher it is: the line is flat.
    assert predicted(FOUR, np.arange(3), np.array([0.0, 0.5, 1.0]), 1e-9).tolist() == [0.5] * 4


@pytest.mark.slow
def test_a_wave_draws_the_problems_nearest_to_the_target() -> None:
    # References e (1) and w (0, of which one row was not judged); the others are predicted 0.5, 0.9 and 0.1.
    angle = {"e": 0.0, "w": math.pi, "n": math.pi / 2, "near_e": 0.0, "near_w": math.pi, "s": -math.pi / 2}
    vectors = [[math.cos(each), math.sin(each)] for each in angle.values()]
    problems = pa.table({"problem_id": [*angle], "question": [*angle], "embedding.vector": vectors})
    rows = pa.table({"problem_id": list("eeww"), "group": [0, 0, 1, 1], "correct": [1.0, 1.0, 0.0, None]})
    first = rows.append_column("wave", pa.array([0] * 4, pa.int32()))
    asked, sharp = round_of(first, problems), math.log(9) / 2
    plan = dots(asked, np.random.default_rng(0), sharpness=sharp)
    assert plan is not None
    assert sorted(plan.problem_id.to_pylist()) == ["n", "s"]  # as many as the round began with
    assert plan.columns["reason"].to_pylist() == ["predicted pass rate 0.500"] * 2
    high = dots(asked, np.random.default_rng(0), groups=1, target=1.0, sharpness=sharp)
    assert high is not None
    assert high.problem_id.to_pylist() == ["near_e"]
    # At temperature 0.4 / log(2), 0.5 is twice as likely as 0.9 and 0.1: 2 of 6 each, 1 of 6 each.
    drawn = [
        dots(asked, np.random.default_rng(seed), groups=1, temperature=0.4 / math.log(2), sharpness=sharp)
        for seed in range(1000)
    ]
    names = [plan.problem_id[0].as_py() for plan in drawn if plan is not None]
    assert [names.count(each) / 1000 for each in ("n", "near_e", "near_w", "s")] == pytest.approx(
        [1 / 3, 1 / 6, 1 / 6, 1 / 3], abs=0.06
    )
    assert dots(round_of(first.set_column(2, "correct", pa.nulls(4)), problems), np.random.default_rng(0)) is None


def test_vectors_are_a_matrix_with_nan_for_an_empty_list() -> None:
    found = vectors_of(Lists(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 2, 2, 4])))
    np.testing.assert_array_equal(found, [[1, 2], [np.nan, np.nan], [3, 4]])
    assert vectors_of(Lists(np.zeros(0), np.zeros(3, np.int64))).shape == (2, 0)


def test_the_reference_set_is_left_out() -> None:
    rows = BatchRows(pa.table({"rollout_id": list("abc"), "wave": pa.array([None, 0, 2], pa.int32())}))
    assert without_first(rows)["taken"].tolist() == [False, False, True]


def test_a_clip_around_the_samplers_ratio_is_the_clip_times_that_ratio() -> None:
    # -min(r A, clip(r, r_old (1 - .2), r_old (1 + .2)) A), r to the policy that sampled (pi_mu), by hand:
    # r = .6/.5, r_old = .4/.5: clip at .96; r = .1/.5, r_old = .4/.5: floor .64; r = .2/.1, r_old = .2/.1: 2.
    now, old, sampler = ([0.6, 0.1, 0.2], [0.4, 0.4, 0.2], [0.5, 0.5, 0.1])
    tokens = {
        "now.logp": torch.tensor(now).log(),
        "old.logp": torch.tensor(old).log(),
        "sampler.logp": torch.tensor(sampler).log(),
        "advantage": torch.tensor([1.0, -1.0, 3.0]),
    }
    rows = Rows({}, tokens, torch.tensor([3]))
    weight, _ = token_truncated(rows, cap=1e6)
    loss, _ = clip(rows, clip_low=0.2, clip_high=0.2)
    assert (weight * loss).tolist() == pytest.approx([-0.96, 0.64, -6.0])
