"""D3S and entropy-shaped advantages by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.decisive import d3s, entropy_shaped


def rows(advantage: list[float], entropy: list[float], mask: list[bool] | None = None) -> Rows:
    of_tokens = {
        "advantage": torch.tensor(advantage, dtype=torch.float64),
        "now.entropy": torch.tensor(entropy, dtype=torch.float64),
    }
    return Rows(
        {"group": torch.zeros(2)},
        of_tokens,
        torch.tensor([len(advantage), 0]),
        None if mask is None else torch.tensor(mask),
    )


def test_the_tokens_of_largest_advantage_times_entropy_are_kept() -> None:
    # |A| H = 0.5, 4, 3, 0, 2 and a masked 99: the quantile at 0.6 of the five lies 0.4 of the way from 2 to 3.
    step = rows([1, -2, 3, 0, -4, 9], [0.5, 2, 1, 5, 0.5, 11], [True] * 5 + [False])
    weight, metrics = d3s(step, frac=0.4)
    assert weight[:5].tolist() == [0, 1, 1, 0, 0]
    assert float(metrics["d3s_threshold_max"][0]) == pytest.approx(2.4)
    assert d3s(step, frac=1.0)[0][:5].tolist() == [1] * 5
    assert len(d3s(rows([], []))[0]) == 0
    assert d3s(rows([1], [1], [False]))[0].tolist() == [1]


def test_entropy_is_added_to_the_advantage_up_to_a_share_of_it() -> None:
    # psi = min(0.4 H, |A| / 2): A + psi = 1 + 0.4, 1 + 0.5, -2 + 0.8, -1 + 0.5, 0.
    weight, metrics = entropy_shaped(rows([1, 1, -2, -1, 0], [1, 2, 2, 100, 3]))
    assert weight.tolist() == pytest.approx([1.4, 1.5, 0.6, 0.5, 1.0])
    assert metrics["entropy_share_mean"].tolist() == pytest.approx([0.4, 0.5, 0.4, 0.5, 0])


@given(st.floats(-3, 3), st.floats(0, 9), st.floats(1.01, 9))
def test_no_entropy_turns_the_sign_of_an_advantage(advantage: float, entropy: float, kappa: float) -> None:
    weight = float(entropy_shaped(rows([advantage], [entropy]), kappa=kappa)[0])
    assert 0 < weight < 2
    if abs(advantage) > 1e-3:
        assert weight * advantage == pytest.approx(
            advantage + min(0.4 * entropy, abs(advantage) / kappa), rel=1e-5, abs=1e-6
        )
