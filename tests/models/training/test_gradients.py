"""The gradient of a step that is not taken, against hand-made numbers and plain vectors.

tests.models.objectives.test_registry compares it with the update's own, component by component.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradus.models.objectives.aggregations.means import token_mean
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.losses.linear import reinforce
from gradus.models.objectives.objective import Advantage, Objective, Part, Term
from gradus.models.objectives.rows import Rows
from gradus.models.training.gradients import Gradient, TokenPull, compressed, half_gradients
from gradus.models.training.packed.forward import form_of
from gradus.models.training.passes import Budget
from gradus.models.training.update import Step, counted_rows
from tests.models.training.test_update import ONE_STEP, model, rollouts, train_state
from tests.models.training.trial import Trial, all_logprobs

ALL = 2**20
NO_TOKENS = TokenPull(*(torch.zeros(0),) * 4)


def looked(trial: Trial, rows: Rows, num_coordinates: int = ALL) -> Gradient:
    state, objective = train_state(), trial.objective
    rows = counted_rows(objective.with_advantages(rows), objective)
    step = Step(state, rows, objective, trial.settings, form_of(state.model), Budget(10_000))
    return half_gradients(step, rows["group"] == 1, num_coordinates)


def test_the_pull_of_reinforce_is_the_advantage_over_the_number_of_tokens() -> None:
    found = looked(replace(ONE_STEP, loss=reinforce, aggregation=token_mean), rollouts())
    wanted = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0, 0.0]).repeat_interleave(torch.tensor([3, 2, 4, 2, 2, 3])) / 16
    torch.testing.assert_close(found.tokens.pull, wanted)
    torch.testing.assert_close(found.tokens.mass, wanted.abs())
    assert not found.tokens.masked.any()
    assert not found.tokens.clipped.any()


def test_tokens_beyond_the_clip_range_and_weights_of_zero_are_counted_apart() -> None:
    own = all_logprobs(model(), rollouts(), 10_000)
    # Ratios 1.5 and 0.5 of the first row, whose advantage is 1: only the first is beyond 1 + 0.2 and flat. Of the
    # second row, advantage -1, only the second, 0.5, is below 1 - 0.2.
    ratio = torch.ones(16)
    ratio[:2], ratio[3:5] = torch.tensor([1.5, 0.5]), torch.tensor([1.5, 0.5])

    def without_third(rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.where(torch.arange(len(rows.row)) == 2, 0.0, 1.0), {}

    trial = replace(ONE_STEP, loss=partial(clip, clip_low=0.2, clip_high=0.2), weights=(without_third,))
    rows = rollouts().adding(of_tokens={"old.logp": own - ratio.log()})
    tokens = looked(trial, rows).tokens
    assert tokens.clipped.nonzero()[:, 0].tolist() == [0, 4]
    assert tokens.masked.nonzero()[:, 0].tolist() == [2]
    torch.testing.assert_close(tokens.pull[:5] * 16, torch.tensor([0.0, 0.5, 0.0, -1.5, 0.0]))
    assert (tokens.mass[-5:] == 0).all()  # an advantage of 0 has nothing to clip


def test_a_regulariser_pulls_at_tokens_and_hides_no_clip() -> None:
    own = all_logprobs(model(), rollouts(), 10_000)
    ratio = torch.ones(16)
    ratio[0] = 1.5
    rows = rollouts().adding(of_tokens={"old.logp": own - ratio.log(), "reference.logp": own - 0.3})
    trial = replace(ONE_STEP, loss=partial(clip, clip_low=0.2, clip_high=0.2), kl_coef=0.1)
    tokens = looked(trial, rows).tokens
    assert tokens.clipped.nonzero()[:, 0].tolist() == [0]
    # k3 = e^(r - p) - 1 - (r - p) falls in p by e^(r - p) - 1, with r - p = -0.3.
    assert float(tokens.pull[0]) * 16 == pytest.approx(0.1 * (np.exp(-0.3) - 1), rel=1e-4)


@pytest.mark.parametrize(
    ("halves", "signal", "cosine"),
    [
        (((1.0, 0.0), (1.0, 1.0)), 4.0, 2**-0.5),
        (((1.0, 0.0), (0.0, 1.0)), 0.0, 0.0),
        (((1.0, 0.0), (-1.0, 0.0)), -1.0, -1.0),
    ],
)
def test_signal_to_noise_of_halves(halves: Any, signal: float, cosine: float) -> None:
    first, second = (torch.tensor(each) for each in halves)
    squared = (float(first @ first), float(second @ second))
    found = Gradient((first, second), squared, float(first @ second), NO_TOKENS)
    assert (found.signal_to_noise, found.half_cosine) == (pytest.approx(signal), pytest.approx(cosine))
    assert found.norm == pytest.approx(float(torch.linalg.norm(first + second)))


def test_signal_to_noise_is_that_of_the_sum_of_groups() -> None:
    """20 groups of gradient N(m, I) in 50 dimensions: the signal is |20 m|^2, the noise 20 x 50."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=50) * 0.4
    drawn = mean + rng.normal(size=(4000, 20, 50))
    first, second = drawn[:, :10].sum(1), drawn[:, 10:].sum(1)
    signal, noise = 4 * (first * second).sum(1).mean(), ((first - second) ** 2).sum(1).mean()
    assert signal == pytest.approx(400 * mean @ mean, rel=0.05)
    assert noise == pytest.approx(20 * 50, rel=0.05)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_a_sketch_keeps_inner_products(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    one, other = (torch.randn(5000, generator=rng) + 1 for _ in range(2))
    sketches = [compressed(each.split([1000, 4000]), 1024) for each in (one, other)]
    assert [len(each) for each in sketches] == [1024, 1024]
    spread = float(torch.linalg.norm(one) * torch.linalg.norm(other)) * (2 / 1024) ** 0.5
    assert float(sketches[0] @ sketches[1]) == pytest.approx(float(one @ other), abs=4 * spread)


def test_what_fits_is_kept_as_it_is() -> None:
    parts = [torch.arange(6.0).reshape(2, 3), torch.tensor([7.0])]
    assert compressed(parts, 7).tolist() == [0, 1, 2, 3, 4, 5, 7]
    assert len(compressed(parts, 6)) == 6


@pytest.mark.parametrize(("inside", "counted"), [([0, 1], 5), ([], 0)])
def test_the_weights_of_a_term_see_its_own_rows(inside: list[int], counted: int) -> None:
    seen = list[int]()

    def tenths(rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(int(rows.mask.sum()))
        return torch.full((len(rows.row),), 0.1), {}

    members = torch.zeros(6, 2, dtype=torch.bool)
    members[inside, 0], members[2, 1] = True, True
    terms = tuple(
        Term(Part(reinforce), Part(token_mean), weights=weights, over="term") for weights in ((Part(tenths),), ())
    )
    objective = Objective((Advantage(Part(lambda rows: rows["advantage"])),), terms)
    rows = rollouts(terms=members)
    step = Step(train_state(), rows, objective, ONE_STEP.settings, "packed", Budget(10_000))
    pull = half_gradients(step, rows["group"] == 1, ALL).tokens.pull
    assert seen == [counted] * bool(counted)
    of_first = torch.tensor([1.0, -1.0]).repeat_interleave(torch.tensor([3, 2])) * 0.1 / 5
    torch.testing.assert_close(pull[:5], of_first if counted else torch.zeros(5))
    torch.testing.assert_close(pull[5:9], torch.full((4,), 0.5 / 4))
