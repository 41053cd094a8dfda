"""Decoupled PPO, iw-SFT and the surrogate on the sampler's ratio, by hand and by limits."""

import math

import pytest
import torch

from gradus.models.objectives.losses.behaviour import decoupled, iw_sft
from gradus.models.objectives.losses.clipped import behaviour_clip, clip
from gradus.models.objectives.rows import Rows

NOW = torch.tensor([0.6, 0.4, 0.5, 0.2]).log()
OLD = torch.tensor([0.4, 0.4, 0.5, 0.4]).log()
SAMPLER = torch.tensor([0.2, 0.8, 0.05, 0.4]).log()
ADVANTAGE = torch.tensor([1.0, -2.0, 1.0, -1.0])


def step(now: torch.Tensor = NOW, sampler: torch.Tensor = SAMPLER, old: torch.Tensor = OLD) -> Rows:
    columns = {"now.logp": now, "old.logp": old, "sampler.logp": sampler, "advantage": ADVANTAGE}
    return Rows({}, columns, torch.tensor([3, 0, 1]))


def test_decoupled_ppo_clips_near_the_proximal_policy_and_weighs_by_the_behaviour() -> None:
    now = NOW.clone().requires_grad_()
    loss, metrics = decoupled(step(now), clip_low=0.2, clip_high=0.2, cap=5.0)
    # rho = 1.5 (clipped to 1.2), 1, 1, 1/2 (clipped to 0.8 for A < 0); w = 2, 1/2, 10 (above the cap), 1.
    assert loss.tolist() == pytest.approx([-2.4, 1.0, 0.0, 0.8])
    assert metrics["behaviour_mean"].tolist() == pytest.approx([2.0, 0.5, 0.0, 1.0])
    assert metrics["clip_frac_high"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert metrics["clip_frac_low"].tolist() == [0.0, 0.0, 0.0, 1.0]
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([0.0, 1.0, 0.0, 0.0])


def test_decoupled_ppo_is_ppo_where_the_sampler_is_the_proximal_policy() -> None:
    rows = step(sampler=OLD)
    expected = clip(rows, clip_low=0.2, clip_high=0.2)[0]
    assert decoupled(rows)[0].tolist() == expected.tolist()
    assert behaviour_clip(rows, clip_low=0.2, clip_high=0.2)[0].tolist() == expected.tolist()


def test_the_ratio_to_the_sampler_is_the_one_that_is_clipped() -> None:
    now = NOW.clone().requires_grad_()
    loss, metrics = behaviour_clip(step(now), clip_low=0.2, clip_high=0.2)
    # rho = 3 (clipped to 1.2), 1/2 (clipped to 0.8, A < 0), 10 (1.2), 1/2 (0.8).
    assert loss.tolist() == pytest.approx([-1.2, 1.6, -1.2, 0.8])
    assert metrics["ratio_mean"].tolist() == pytest.approx([3.0, 0.5, 10.0, 0.5])
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == [0.0] * 4
    # Between the bounds of 3 and 10 the second alone, whose gradient is rho A = -(-2) / 2.
    again = NOW.clone().requires_grad_()
    behaviour_clip(step(again), clip_low=0.6, clip_high=0.2)[0].sum().backward()
    assert again.grad is not None
    assert again.grad.tolist() == pytest.approx([0.0, 1.0, 0.0, 0.5])


def test_iw_sft_weighs_a_completion_by_how_likely_it_became() -> None:
    old, ref = torch.tensor([0.5, 0.6, 0.9, 0.1]).log(), torch.tensor([0.4, 0.5, 0.1, 0.9]).log()
    now = torch.tensor([0.5, 0.25, 0.5, 0.5]).log().requires_grad_()
    columns = {"now.logp": now, "old.logp": old, "reference.logp": ref}
    given = Rows({}, columns, torch.tensor([2, 1, 0, 1]))
    loss, metrics = iw_sft(given, low=0.5, high=2.0)
    # 0.5 * 0.6 / (0.4 * 0.5) = 1.5; 9 above the bound 2; 1/9 below the bound 1/2.
    assert metrics["curated_weight_mean"].tolist() == pytest.approx([1.5, 1.5, 2.0, 0.5])
    ln2 = math.log(2)
    assert loss.tolist() == pytest.approx([1.5 * ln2, 3.0 * ln2, 2.0 * ln2, 0.5 * ln2])
    loss.sum().backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx([-1.5, -1.5, -2.0, -0.5])
