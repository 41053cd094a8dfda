"""Dual clip, MM-Eureka's cap and Pre-CLIP, by hand and against the formulas of their papers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.objectives.losses.bounded import dual_clip
from gradus.models.objectives.losses.clipped import clip
from tests.models.objectives.ratios import gradient, logs, view


def test_the_loss_is_that_of_a_published_test() -> None:
    # NeMo-RL's and SkyRL's test of dual clip: ratios 0.5, 1 and 10 under A = 1, -1, -4 with clip 0.2 and c = 3 have the
    # losses -0.5, 1 and min(40, 12) = 12.
    rows, now = view(logs([0.5, 1, 10]), [1, -1, -4])
    loss, metrics = dual_clip(rows, clip_low=0.2, clip_high=0.2, cap=3.0)
    assert loss.tolist() == pytest.approx([-0.5, 1, 12])
    assert float(loss.detach().mean()) == pytest.approx(4.1667, abs=1e-4)
    assert gradient(loss, now) == pytest.approx([-0.5, 1, 0])
    assert metrics["bounded_frac"].tolist() == [0, 0, 1]
    assert metrics["ratio_max"].tolist() == pytest.approx([0.5, 1, 10])


def test_a_floor_bounds_right_tokens_that_vanished() -> None:
    # StableReinforce: below 1e-3 a token of A > 0 keeps the loss -1e-3 A without a gradient; above it -rho A.
    rows, now = view(logs([1e-4, 2e-3, 1e-4, 2e3]), [2, 2, -2, -2])
    loss, metrics = dual_clip(rows, clip_low=0.2, clip_high=0.2, floor=1e-3, cap=1e3)
    assert loss.tolist() == pytest.approx([-2e-3, -4e-3, 1.6, 2e3])
    assert gradient(loss, now) == pytest.approx([0, -4e-3, 0, 0])
    assert metrics["bounded_frac"].tolist() == [1, 0, 0, 1]
    assert metrics["clip_frac_low"].tolist() == [0, 0, 1, 0]


ratio = st.floats(0.01, 20.0)


@given(st.lists(st.tuples(ratio, st.floats(-3, 3)), min_size=1, max_size=6))
def test_it_is_the_formula_of_dual_clip_and_clip_where_no_bound_is_met(pairs: list[tuple[float, float]]) -> None:
    rows, _ = view(logs([r for r, _ in pairs]), [a for _, a in pairs])
    found = dual_clip(rows, clip_low=0.2, clip_high=0.28, cap=3.0)[0].tolist()
    for value, (r, a) in zip(found, pairs, strict=True):
        surrogate = min(r * a, min(max(r, 0.8), 1.28) * a)
        assert value == pytest.approx(-max(surrogate, 3.0 * a) if a < 0 else -surrogate, abs=1e-12)
    far = dual_clip(rows, clip_low=0.2, clip_high=0.28, cap=math.e**11)[0]
    assert torch.equal(far, clip(rows, clip_low=0.2, clip_high=0.28)[0])
