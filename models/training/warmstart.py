"""Supervised fine-tuning on worked solutions, before reinforcement learning.

The loss is the mean negative log-likelihood of the completion tokens; the prompt's tokens carry none.
Left out: packing, evaluation during training, mixed precision.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from gradus.models.policy import PromptSide
from gradus.models.training.settings import FinetuneConfig, learning_rate

NUM_BUCKETS = 4
"""Micro-batches per step, by length, so that short rows carry little padding."""

OnStep = Callable[[int, float], None]


@dataclass(frozen=True)
class Example:
    """One problem: its prompt and its worked solution with the end token, as token ids."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


def example_of(side: PromptSide, prompt: Sequence[int], text: str) -> Example | None:
    """Return a prompt and a text with the end token behind it; None if the policy's context is too short for both."""
    completion = side.tokenizer(text, add_special_tokens=False)["input_ids"]
    fits = len(prompt) + len(completion) < side.context_tokens
    return Example(tuple(prompt), (*completion, side.end_tokens[0])) if fits else None


def finetune(
    model: PreTrainedModel,
    examples: Sequence[Example],
    settings: FinetuneConfig,
    rng: np.random.Generator,
    on_step: OnStep,
) -> list[float]:
    """Train the model in place and return the loss of every step; raise ValueError if a loss is not finite."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    decay_steps = settings.decay_steps or settings.steps
    for step in range(settings.steps):
        lr = learning_rate(step, lr=settings.lr, warmup_steps=settings.warmup_steps, decay_steps=decay_steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        chosen = rng.integers(0, len(examples), settings.batch_rows)
        optimizer.zero_grad(set_to_none=True)
        loss = _accumulate(model, [examples[i] for i in chosen])
        if not math.isfinite(loss):
            raise ValueError(f"the loss of step {step} is not finite")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
        on_step(step, losses[-1])
    model.eval()
    return losses


def _accumulate(model: PreTrainedModel, examples: Sequence[Example]) -> float:
    """Accumulate gradients of the mean loss per completion token, rows grouped by length; return that mean."""
    ordered = sorted(examples, key=lambda e: len(e.prompt) + len(e.completion))
    num_tokens = sum(len(e.completion) for e in examples)
    size = -(-len(ordered) // NUM_BUCKETS)
    total = 0.0
    for start in range(0, len(ordered), size):
        loss = completion_loss(model, ordered[start : start + size]) / num_tokens
        loss.backward()
        total += float(loss.detach())
    return total


def completion_loss(model: PreTrainedModel, examples: Sequence[Example]) -> torch.Tensor:
    """Summed negative log-likelihood (nats) of the completion tokens of right-padded rows."""
    length = max(len(e.prompt) + len(e.completion) for e in examples)
    ids = torch.zeros((len(examples), length), dtype=torch.long)
    labels = torch.full((len(examples), length), -100)
    for row, example in enumerate(examples):
        tokens = torch.tensor([*example.prompt, *example.completion])
        ids[row, : len(tokens)] = tokens
        labels[row, len(example.prompt) : len(tokens)] = tokens[len(example.prompt) :]
    logits = model(input_ids=ids.to(model.device)).logits[:, :-1]
    targets = labels[:, 1:].reshape(-1).to(model.device)
    return cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets, reduction="sum")
