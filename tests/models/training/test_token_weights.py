"""Weights of tokens in a step of a policy: packs change nothing of them, and token ids are those of the completions."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch

from gradus.models.objectives.advantages.tokens.groups import gtpo as gtpo_advantage
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.bounds import bapo, hapo
from gradus.models.objectives.weights.conflicts import gtpo
from gradus.models.objectives.weights.covariance import clip_cov, kl_cov, steer
from gradus.models.objectives.weights.curvature import capo_curvature
from gradus.models.objectives.weights.decisive import d3s, entropy_shaped
from tests.models.training.test_update import ONE_STEP, gradients, model, naive_logprobs, rollouts

NEEDS = frozenset(
    {"advantage", "now.logp", "old.logp", "now.entropy", "now.head_gradient", "now.head_curvature"}
    | {"reward", "group", "tokens"}
)
WIDE = partial(clip, clip_low=1.0, clip_high=1e9)
WEIGHTS: dict[str, Any] = {
    "clip_cov": partial(clip_cov, frac=0.2, above=-1.0),
    "kl_cov": partial(kl_cov, frac=0.3),
    "steer": steer,
    "gtpo": gtpo,
    "bapo": partial(bapo, target=9.0),
    "hapo": hapo,
    "d3s": partial(d3s, frac=0.3),
    "entropy_shaped": entropy_shaped,
    "capo_curvature": partial(capo_curvature, step=0.05, max_kl=0.053),
}


@cache
def stale() -> Rows:
    """Rows that an older policy has sampled, so that ratios are not 1."""
    rows, policy = rollouts(), model()
    logp = torch.cat([naive_logprobs(policy, rows, row)[0].detach() for row in range(rows.num_rows)])
    moved = 0.6 * torch.randn(len(logp), generator=torch.Generator().manual_seed(1))
    return rows.adding(of_tokens={"old.logp": logp + moved})


@pytest.mark.parametrize("name", WEIGHTS)
def test_packs_change_nothing_of_a_weight(name: str) -> None:
    settings = replace(ONE_STEP, loss=WIDE, weights=(WEIGHTS[name],), needs=NEEDS)
    whole, plain = gradients(settings, stale()), gradients(replace(ONE_STEP, loss=WIDE), stale())
    assert float(whole.abs().max()) > 1e-4
    assert not torch.allclose(whole, plain, atol=1e-5)
    for budget in (1, 9):  # entropies of a new policy differ by hundredths, which HAPO stretches to [-1, 1]
        assert torch.allclose(gradients(replace(settings, micro_tokens=budget), stale()), whole, atol=2e-5)


def test_the_advantage_of_gtpo_is_made_of_the_whole_step() -> None:
    settings = replace(ONE_STEP, step_advantage=partial(gtpo_advantage, most=9.0), needs=NEEDS - {"advantage"})
    whole = gradients(settings, rollouts())
    assert float(whole.abs().max()) > 1e-3
    assert torch.allclose(gradients(replace(settings, micro_tokens=1), rollouts()), whole, atol=1e-6)


def test_token_ids_are_those_of_the_completions() -> None:
    rows = rollouts()
    chosen = rows.select(torch.tensor([4, 1]))
    assert chosen["tokens"].tolist() == [*rows["completion"][4].tolist(), *rows["completion"][1].tolist()]
