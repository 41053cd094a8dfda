"""Supervised fine-tuning: which tokens carry the loss, and that it learns the same way each time."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.settings import FinetuneConfig
from gradus.models.training.warmstart import Example, completion_loss, finetune


def tiny() -> PreTrainedModel:
    return new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=0).model


def test_the_prompt_carries_no_loss_in_warmstart() -> None:
    model = tiny()
    found = float(completion_loss(model, [Example((9, 12), (10, 1))]).detach())
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([[9, 12, 10, 1]])).logits[0].double(), -1)
    assert found == pytest.approx(float(-(logp[1, 10] + logp[2, 1])), rel=1e-5)


def test_warmstart_learns_a_few_examples_the_same_way_each_time() -> None:
    def losses() -> list[float]:
        examples = [Example((9 + i, 5), (10 + i, 1)) for i in range(4)]
        return finetune(
            tiny(),
            examples,
            FinetuneConfig(steps=120, batch_rows=8, lr=5e-3, warmup_steps=2, decay_steps=0),
            np.random.default_rng(0),
            lambda _step, _loss: None,
        )

    first = losses()
    assert first[-1] < 0.1 * first[0]
    assert first == losses()
