"""Policy losses in an update of several steps: the same however the rows of a step are packed."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from gradus.models.objectives.aggregations.lengths import delta_l, prompt_mean, sequence_sum
from gradus.models.objectives.aggregations.means import sequence_mean, token_mean
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.losses.sequence import gmpo, gspo_token
from gradus.models.objectives.losses.surrogates import cpgd, dual_clip, sapo, standardised
from gradus.models.objectives.losses.weighted import asymre, cispo, dppo, llds, opmd, rec, topr, vespo
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.by_advantage import exp_advantage, without_outliers
from tests.models.training.test_update import SETTINGS, gradients, parameters, rollouts, train_state, trained
from tests.models.training.trial import Trial

Found = tuple[Tensor, dict[str, Tensor]]


def with_llds(rows: Rows) -> Found:
    """The clip and the penalty, which alone would never leave the start."""
    loss, metrics = clip(rows)
    return loss + llds(rows)[0], metrics


STEPS = replace(SETTINGS, minibatch_groups=0, lr=3e-3)
"""Two steps on all rows: ratios to the start of the update are off 1 in the second one."""


@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [
        *((loss, token_mean) for loss in (dual_clip, cispo, dppo, rec, vespo, cpgd, standardised, asymre, with_llds)),
        (partial(dppo, divergence="kl"), prompt_mean),
        (topr, sequence_sum),
        (opmd, sequence_sum),
        (gspo_token, partial(delta_l, alpha=0.5)),
        (gmpo, sequence_mean),
        (sapo, sequence_mean),
    ],
)
def test_packs_change_nothing(loss: Any, aggregation: Any) -> None:
    acts = loss in (opmd, asymre, with_llds)
    settings = replace(STEPS, loss=loss, aggregation=aggregation, acts_without_advantage=acts)
    whole = gradients(settings, rollouts())
    scale = float(whole.abs().max())
    assert scale > 1e-5
    found = gradients(replace(settings, micro_tokens=1), rollouts())
    assert torch.allclose(found / scale, whole / scale, atol=1e-4)


def advantages(*weights: Any) -> Trial:
    return replace(STEPS, epochs=1, loss=cispo, weights=weights)


def test_a_weight_of_the_advantage_multiplies_the_gradient() -> None:
    rows = rollouts(advantage=torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    plain = gradients(advantages(), rows)
    assert torch.allclose(
        gradients(advantages(partial(exp_advantage, temperature=0.5)), rows), 7.389056 * plain, atol=1e-6
    )
    # Sixteen tokens of which two, of the row that stands out by 2.6 std, are left out: the rest of the gradient stays.
    odd = torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    found, _ = trained(advantages(partial(without_outliers, sigmas=2.0)), rollouts(advantage=odd))
    assert torch.equal(parameters(found), parameters(train_state()))
    moved, _ = trained(advantages(partial(without_outliers, sigmas=3.0)), rollouts(advantage=odd))
    assert not torch.equal(parameters(moved), parameters(train_state()))
