"""Properties that all policy losses of the ratio share."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.losses.linear import reinforce
from gradus.models.objectives.losses.sequence import gmpo, gspo, gspo_token, sspo
from gradus.models.objectives.losses.surrogates import cpgd, dual_clip, sapo, standardised
from gradus.models.objectives.losses.weighted import cispo, dppo, opmd, rec, topr, vespo
from tests.models.objectives.ratios import Loss, gradient, view

LOSSES: list[Loss] = [
    *(clip, dual_clip, cispo, dppo, rec, topr, vespo),
    *(gspo, gspo_token, gmpo, sspo, sapo, cpgd, standardised, opmd),
]


def named(loss: Any) -> str:
    return loss.__name__


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_the_gradient_at_the_sampler_is_that_of_reinforce(loss: Loss) -> None:
    rows, now = view([0.0] * 6, [1.5, 1.5, -0.5, 2.0, 2.0, 0.0], [2, 1, 0, 2, 1], mask=[True] * 4 + [False, True])
    expected = gradient(reinforce(rows)[0], now, rows.mask)
    assert gradient(loss(rows)[0], now, rows.mask) == pytest.approx(expected)


@pytest.mark.parametrize("loss", LOSSES, ids=named)
@given(data=st.data())
@settings(max_examples=12)
def test_a_row_has_its_loss_in_any_company_and_order(loss: Loss, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    count = sum(lengths)
    ratios = data.draw(st.lists(st.floats(-1.5, 1.5), min_size=count, max_size=count))
    mask = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    of_rows = data.draw(st.lists(st.floats(-2, 2), min_size=len(lengths), max_size=len(lengths)))
    advantages = [a for a, n in zip(of_rows, lengths, strict=True) for _ in range(n)]
    rows, _ = view(ratios, advantages, lengths, mask=mask)
    whole, metrics = loss(rows)
    assert all(len(values) == count and not values.requires_grad for values in metrics.values())
    order = torch.tensor(data.draw(st.permutations(range(len(lengths)))))
    again, _ = loss(rows.select(order))
    counted = rows.mask[rows.places(order)]
    assert torch.allclose(again[counted], whole[rows.places(order)][counted], rtol=1e-12)
    for row in range(len(lengths)):
        alone = rows.select(torch.tensor([row]))
        places = rows.places(torch.tensor([row]))
        assert torch.allclose(loss(alone)[0][alone.mask], whole[places][rows.mask[places]], rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_a_token_that_does_not_count_moves_no_other(loss: Loss) -> None:
    mask = [True, False, True]
    found = [loss(view([0.1, odd, -0.2], [1, 1, 1], [3], mask=mask)[0])[0] for odd in (0.3, -8.0)]
    assert found[0][[0, 2]].tolist() == found[1][[0, 2]].tolist()
