"""Fine-tuning: only completions carry loss, parts change nothing, the same seed gives the same bits, it learns."""

import math

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.settings import FinetuneConfig
from gradus.models.training.warmstart import Example, completion_loss, finetune

EXAMPLES = [Example((3, 8 + i, 4, 9, 7), (8 + i, 18, 9, 20, 9 + i, 1)[: 3 + i % 3]) for i in range(8)]


def model() -> PreTrainedModel:
    return new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=0).model


def naive_loss(policy: PreTrainedModel, example: Example) -> torch.Tensor:
    """Minus the summed log-prob of the completion, one row without padding, from the definition."""
    ids = [*example.prompt, *example.completion]
    logits = policy(torch.tensor([ids])).logits[0].double()
    terms = [
        torch.logsumexp(logits[at - 1], -1) - logits[at - 1, ids[at]] for at in range(len(example.prompt), len(ids))
    ]
    return torch.stack(terms).sum()


def test_the_loss_is_that_of_the_completion_tokens_alone() -> None:
    policy = model()
    with torch.no_grad():
        expected = sum(float(naive_loss(policy, example)) for example in EXAMPLES)
        assert float(completion_loss(policy, EXAMPLES)) == pytest.approx(expected, rel=1e-5)


def test_a_token_of_the_prompt_has_no_loss_of_its_own() -> None:
    # With uniform logits every counted token costs ln 23, whatever it is; three completion tokens are three.
    policy = model()
    with torch.no_grad():
        policy.get_input_embeddings().weight.zero_()
        found = float(completion_loss(policy, [Example((3, 9, 4, 10, 7), (11, 21, 1))]))
    assert found == pytest.approx(3 * math.log(23), rel=1e-6)


def test_one_step_has_the_gradient_of_the_mean_over_all_completion_tokens() -> None:
    tuned, policy = model(), model()
    one_of_each = FinetuneConfig(steps=1, batch_rows=6, lr=1e-3, warmup_steps=0, decay_steps=0)
    losses = finetune(tuned, EXAMPLES, one_of_each, np.random.default_rng(4), lambda _step, _loss: None)
    chosen = [EXAMPLES[i] for i in np.random.default_rng(4).integers(0, len(EXAMPLES), 6)]
    loss = torch.stack([naive_loss(policy, e) for e in chosen]).sum() / sum(len(e.completion) for e in chosen)
    loss.backward()
    assert losses == pytest.approx([float(loss.detach())], rel=1e-5)
    # The gradients that the step left behind, scaled down to norm 1 as the step did.
    mine = torch.cat([p.grad.flatten() for p in tuned.parameters() if p.grad is not None])
    naive = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert torch.allclose(mine, naive / max(1.0, float(naive.norm())), atol=1e-6)
    assert float(mine.abs().max()) > 0.01


def tuned(seed: int, steps: int, told: list[tuple[int, float]] | None = None) -> tuple[PreTrainedModel, list[float]]:
    policy = model()
    report = (told if told is not None else []).append
    settings = FinetuneConfig(steps=steps, batch_rows=8, lr=1e-2, warmup_steps=10, decay_steps=0)
    losses = finetune(policy, EXAMPLES, settings, np.random.default_rng(seed), lambda step, loss: report((step, loss)))
    return policy, losses


@pytest.mark.slow
def test_eight_examples_are_learnt_by_heart() -> None:
    told: list[tuple[int, float]] = []
    policy, losses = tuned(0, 200, told)
    assert losses[0] == pytest.approx(math.log(23), abs=0.5)
    assert losses[-1] < 0.05
    assert told == list(enumerate(losses))
    assert not policy.training
    # Completions are prefixes of one rule, so that a longer one never contradicts a shorter.
    for example in EXAMPLES:
        ids = torch.tensor([[*example.prompt, *example.completion]])
        with torch.no_grad():
            best = policy(ids).logits[0].argmax(-1)[len(example.prompt) - 1 : -1]
        assert best.tolist() == list(example.completion)


def test_the_same_seed_gives_the_same_bits() -> None:
    (first, losses), (again, same) = tuned(0, 6), tuned(0, 6)
    assert losses == same
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert tuned(1, 6)[1] != losses


def test_a_loss_that_is_not_finite_stops_before_the_step() -> None:
    policy = model()
    with torch.no_grad():
        policy.get_input_embeddings().weight[9, 0] = math.nan
    before = [p.detach().clone() for p in policy.parameters()]
    with pytest.raises(ValueError, match="the loss of step 0 is not finite"):
        finetune(
            policy,
            EXAMPLES,
            FinetuneConfig(steps=3, batch_rows=8, lr=1e-3, warmup_steps=0, decay_steps=0),
            np.random.default_rng(0),
            lambda _step, _loss: None,
        )
    for was, now in zip(before, policy.parameters(), strict=True):
        assert torch.equal(was.nan_to_num(7.0), now.detach().nan_to_num(7.0))
