"""The chance after further answers, against sums over a fine grid and Beta's rule of succession."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from gradus.data.curation.surface.updating import chances_after


def on_a_grid(mean: list[float], cov: list[list[float]], seen: list[float], right: list[int], share: float) -> float:
    """The same mean by a sum over 400 x 400 points."""
    axes = [np.linspace(m - 7 * v**0.5, m + 7 * v**0.5, 400) for m, v in zip(mean, (cov[0][0], cov[1][1]), strict=True)]
    bare, gain = np.meshgrid(*axes, indexing="ij")
    away = np.stack((bare - mean[0], gain - mean[1]), axis=-1)
    weight = np.exp(-np.einsum("abi,ij,abj->ab", away, np.linalg.inv(cov), away) / 2)
    for at, won in zip(seen, right, strict=True):
        p = special.expit(bare + at * gain)
        weight = weight * (p if won else 1 - p)
    return float((weight * special.expit(bare + share * gain)).sum() / weight.sum())


@pytest.mark.parametrize(
    ("seen", "right"), [([], []), ([0.0] * 8, [0] * 8), ([0.0] * 8 + [0.5] * 4, [0] * 8 + [1, 0, 1, 1])]
)
def test_the_chance_is_that_of_a_fine_grid(seen: list[float], right: list[int]) -> None:
    mean, cov = [-1.0, 2.0], [[1.5, -0.6], [-0.6, 4.0]]
    shares = np.array([0.0, 0.25, 0.5, 1.0])
    found, reach = chances_after(np.array(mean), np.array(cov), np.array(seen), np.array(right), shares, 0.3)
    expected = [on_a_grid(mean, cov, seen, right, share) for share in shares]
    assert found == pytest.approx(expected, abs=2e-4)
    if not seen:  # logit(p) is normal, of variance 1.5 - 1.2 s + 4 s^2
        spread = np.sqrt(1.5 - 1.2 * shares + 4 * shares**2)
        assert reach == pytest.approx(stats.norm.sf(special.logit(0.3), -1 + 2 * shares, spread))


def test_a_certain_problem_learns_nothing() -> None:
    found, reach = chances_after(
        np.array([0.0, 1.0]), np.zeros((2, 2)), np.zeros(9), np.zeros(9), np.array([0.0, 1.0]), 0.6
    )
    assert found == pytest.approx([0.5, special.expit(1.0)])
    assert reach.round(9).tolist() == [0, 1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.floats(-3, 3), st.floats(0.1, 4))
def test_a_right_answer_raises_every_chance_and_a_wrong_one_lowers_it(
    right: int, wrong: int, bare: float, var: float
) -> None:
    mean, cov, shares = np.array([bare, 1.0]), np.diag([var, 1.0]), np.array([0.0, 0.5])
    answers = [1.0] * right + [0.0] * wrong

    def after(more: list[float]) -> np.ndarray:
        seen = np.zeros(len(answers) + len(more))
        return chances_after(mean, cov, seen, np.array([*answers, *more]), shares, 0.5)[0]

    assert (after([1.0]) > after([])).all()
    assert (after([0.0]) < after([])).all()
