"""Twenty optimiser steps against recorded numbers and an implementation of their own in plain PyTorch.

    python -m tests.models.training.test_golden    # writes tests/golden/update_20_steps.json anew

The recorded numbers come from the plain implementation in float64, which shares the model's class with the update and
nothing else: rows one by one, full logits, the formulas as their papers write them. Weights and rows are NumPy's, so
that another release of PyTorch or transformers starts from the same.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.ragged import Ragged
from gradus.models.objectives.rows import Rows
from gradus.models.training.learning_rows import learning_rows
from gradus.models.training.state import TrainState
from tests.models.training.trial import Trial, all_logprobs, optimised, plan_of

GOLDEN = Path(__file__).parents[2] / "golden" / "update_20_steps.json"
GROUPS, GROUP, EPOCHS, MINIBATCH, SEED = 10, 4, 4, 2, 7
KL, ENTROPY, LOW, HIGH, STD_EPS = 0.05, 0.01, 0.2, 0.28, 1e-4
LR, WARMUP, DECAY, BETAS, WEIGHT_DECAY, MAX_NORM = 4e-3, 3, 20, (0.9, 0.95), 0.01, 0.5
NAMES = ("loss", "reward", "entropy", "kl_ref", "kl_old", "clip_frac_high", "grad_norm")
TOLERANCE = 1e-4
"""Relative, absolute below 1: rounding of float32 came to 4e-6 at most over the 20 steps; other kernels round
otherwise, and a wrong factor anywhere is off by more than a thousandth after a step."""
Steps = list[dict[str, float]]


def model(seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    made = LlamaForCausalLM(config).eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            drawn = torch.from_numpy(rng.normal(size=tuple(parameter.shape)))
            parameter.copy_(1 + 0.1 * drawn if "norm" in name else 0.25 * drawn)
    return made


def rows() -> dict[str, Any]:
    """Prompts, completions, rewards and temperatures of 40 rows in groups of four."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 23, int(rng.integers(2, 9))).tolist() for _ in range(GROUPS)]
    completions = [rng.integers(0, 23, int(rng.integers(1, 13))).tolist() for _ in range(GROUPS * GROUP)]
    reward = rng.choice([0.0, 0.25, 1.0], GROUPS * GROUP)
    reward[:GROUP] = 1.0  # a group without variance
    temperature = np.repeat(np.where(np.arange(GROUPS) % 3 == 0, 0.75, 1.0), GROUP)
    return {"prompts": prompts, "completions": completions, "reward": reward, "temperature": temperature}


def of_gradus() -> Steps:
    """The update's own steps."""
    given, number = rows(), GROUPS * GROUP
    reward, group = torch.from_numpy(given["reward"]), torch.arange(number) // GROUP
    num_tokens = sum(map(len, given["completions"]))
    rollouts = learning_rows(
        prompts=Ragged.of([given["prompts"][i // GROUP] for i in range(number)]),
        completions=Ragged.of(given["completions"]),
        logprobs=torch.full((num_tokens,), -1.0),
        temperature=torch.from_numpy(given["temperature"]).float(),
        advantage=grpo(Rows({"reward": reward, "group": group}), std_eps=STD_EPS),
        group=group,
        reward=reward,
        correct=reward,
    )
    settings = Trial(
        kl_coef=KL,
        entropy_coef=ENTROPY,
        lr=LR,
        warmup_steps=WARMUP,
        decay_steps=DECAY,
        weight_decay=WEIGHT_DECAY,
        betas=BETAS,
        max_grad_norm=MAX_NORM,
        epochs=EPOCHS,
        minibatch_groups=MINIBATCH,
        micro_tokens=40,
    )
    policy, plan = model(1), plan_of(rollouts, settings, SEED)
    old, reference = (all_logprobs(each, rollouts, 40) for each in (policy, model(2)))
    state = TrainState(policy, settings.settings, seed=0)
    log = optimised(state, rollouts, settings, {"old.logp": old, "reference.logp": reference}, plan)
    return [
        {
            "reward": float(reward[step.rows].mean()),
            **{name.removeprefix("policy/"): v for name, v in step.metrics.items()},
        }
        for step in log
    ]


def plain_logprobs(policy: LlamaForCausalLM, given: dict[str, Any], row: int) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (L,) of one row's completion."""
    prompt, completion = given["prompts"][row // GROUP], given["completions"][row]
    whole: Any = policy(input_ids=torch.tensor([prompt + completion])).logits[0]
    p = torch.softmax(whole[len(prompt) - 1 : -1] / given["temperature"][row], -1)
    return p[range(len(completion)), completion].log(), -(p * p.log()).sum(-1)


def plain() -> Steps:
    """The same twenty steps with none of the update's code, in float64."""
    given, policy, reference = rows(), model(1).double(), model(2).double()
    optimizer = torch.optim.AdamW(policy.parameters(), betas=BETAS, weight_decay=WEIGHT_DECAY)
    every = range(GROUPS * GROUP)
    with torch.no_grad():
        old = [plain_logprobs(policy, given, row)[0] for row in every]
        ref = [plain_logprobs(reference, given, row)[0] for row in every]
    rng, found = np.random.default_rng(SEED), Steps()
    for _ in range(EPOCHS):
        order = rng.permutation(GROUPS)
        for first in range(0, GROUPS, MINIBATCH):
            chosen = [GROUP * g + i for g in sorted(order[first : first + MINIBATCH]) for i in range(GROUP)]
            measured = plain_loss(policy, given, chosen, old, ref)
            optimizer.zero_grad()
            measured["loss"].backward()
            norm = sum(float((p.grad**2).sum()) for p in policy.parameters() if p.grad is not None) ** 0.5
            for p in policy.parameters():
                if p.grad is not None:
                    p.grad *= min(1.0, MAX_NORM / norm)
            optimizer.param_groups[0]["lr"] = plain_learning_rate(len(found))
            optimizer.step()
            found.append({**{name: float(value.detach()) for name, value in measured.items()}, "grad_norm": norm})
    return found


def plain_learning_rate(step: int) -> float:
    """Warm-up, then a cosine from LR to a tenth of it."""
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    return LR * (0.55 + 0.45 * math.cos(math.pi * (step - WARMUP) / (DECAY - WARMUP)))


def plain_loss(
    policy: LlamaForCausalLM, given: dict[str, Any], chosen: list[int], old: list[Tensor], ref: list[Tensor]
) -> dict[str, Tensor]:
    """GRPO's loss with separate clip bounds, mean over tokens, KL to the reference and entropy; and its parts."""
    parts: dict[str, list[Tensor]] = {name: [] for name in NAMES if name not in ("reward", "grad_norm")}
    for row in chosen:
        logp, entropy = plain_logprobs(policy, given, row)
        rewards = given["reward"][row // GROUP * GROUP :][:GROUP]
        advantage = (given["reward"][row] - rewards.mean()) / (rewards.std(ddof=1) + STD_EPS)
        ratio = (logp - old[row]).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
        kl = (ref[row] - logp).exp() - (ref[row] - logp) - 1
        parts["loss"].append(-surrogate + KL * kl - ENTROPY * entropy)
        parts["entropy"].append(entropy)
        parts["kl_ref"].append(kl)
        parts["kl_old"].append((logp - old[row]).exp() - (logp - old[row]) - 1)
        parts["clip_frac_high"].append(((ratio > 1 + HIGH) & bool(advantage > 0)).double())
    means = {name: torch.cat(values).mean() for name, values in parts.items()}
    return {**means, "reward": torch.tensor(given["reward"][chosen].mean())}


def close(found: Steps, expected: Steps, rel: float) -> None:
    assert len(found) == len(expected) == 20
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for name in NAMES:
            assert ours[name] == pytest.approx(theirs[name], rel=rel, abs=rel), f"step {step}, {name}"


@pytest.mark.slow
def test_the_plain_implementation_has_the_recorded_numbers() -> None:
    close(plain(), json.loads(GOLDEN.read_text())["steps"], 1e-9)


@pytest.mark.slow
def test_the_updates_twenty_steps_have_the_recorded_numbers() -> None:
    close(of_gradus(), json.loads(GOLDEN.read_text())["steps"], TOLERANCE)


if __name__ == "__main__":
    record = {"how": "tests/models/training/test_golden.py, plain() in float64", "steps": plain()}
    GOLDEN.write_text(json.dumps(record, indent=1) + "\n")
