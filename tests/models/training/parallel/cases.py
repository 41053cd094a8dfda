"""Updates that one process and several ranks take, and what is compared of them: losses, gradients, weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, multiprocessing
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import Parameter
from torch.optim import Optimizer
from transformers import PreTrainedModel

from gradus.components.chosen import OptimizerConfig
from gradus.models.objectives.advantages.critic import gae
from gradus.models.objectives.aggregations.means import sequence_mean, token_mean
from gradus.models.objectives.losses.distillation import distil
from gradus.models.objectives.ragged import Ragged
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.entropy import top_entropy
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.learning_rows import learning_rows
from gradus.models.training.lora import add_lora, trained_parameters, without_lora
from gradus.models.training.packed.forward import form_of
from gradus.models.training.packed.logprobs import Asked
from gradus.models.training.parallel import Ranks, mesh_of, shard, whole
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.settings import CriticConfig, LoraConfig
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from tests.models.training.test_lora import moved
from tests.models.training.trial import Trial, optimised, plan_of

GROUPS, GROUP = 5, 4
SETTINGS = Trial(lr=1e-3, epochs=2, minibatch_groups=2, micro_tokens=48, max_grad_norm=1e9)


@dataclass(frozen=True)
class Case:
    """Settings of an update, and what its model computes in."""

    settings: Trial
    dtype: torch.dtype = torch.float32
    lora: bool = False
    """Whether an adapter is trained; the reference is the model without it."""
    critic: CriticConfig | None = None
    """How the critic learns that the advantage reads; None if it reads none."""


CASES = {
    "grpo with kl": Case(replace(SETTINGS, aggregation=token_mean, kl_coef=0.3, entropy_coef=0.1)),
    "sequence_mean, clipped, top_entropy": Case(
        replace(
            SETTINGS,
            aggregation=sequence_mean,
            max_grad_norm=0.05,
            weights=(partial(top_entropy, frac=0.3),),
            needs=frozenset({"now.entropy"}),
        )
    ),
    "one step": Case(replace(SETTINGS, epochs=1, minibatch_groups=0)),
    "a row a pack, layers computed again, moving average, SGD": Case(
        replace(
            SETTINGS,
            micro_tokens=1,
            activation_checkpointing=True,
            ema_decay=0.9,
            optimizer=OptimizerConfig.model_validate({"name": "sgd", "momentum": 0.9}),
        )
    ),
    # Packs of one row are the same however they are divided: what bfloat16 rounds is, too.
    "bfloat16": Case(replace(SETTINGS, micro_tokens=1, kl_coef=0.1), torch.bfloat16),
    "critic": Case(
        replace(SETTINGS, step_advantage=gae, needs=frozenset({"critic.value"})),
        critic=CriticConfig(lr=1e-3, lam=0.9, max_grad_norm=0.5),
    ),
    "teacher": Case(
        replace(
            SETTINGS, loss=distil, acts_without_advantage=True, needs=frozenset({"teacher.top", "now.top"}), kl_coef=0.1
        )
    ),
    "adapter": Case(replace(SETTINGS, kl_coef=0.3, ema_decay=0.9, max_grad_norm=0.05), lora=True),
    "adapter, bfloat16, layers computed again": Case(
        replace(SETTINGS, micro_tokens=1, kl_coef=0.1, activation_checkpointing=True), torch.bfloat16, lora=True
    ),
}


@dataclass(frozen=True)
class Taken:
    """What an update did: metrics and whole gradients of every step, weights and moving average at its end."""

    metrics: list[dict[str, float]]
    gradients: list[dict[str, Tensor]]
    logps: list[Tensor]
    weights: dict[str, Tensor]
    average: dict[str, Tensor]
    base: dict[str, Tensor]
    """The weights below an adapter, at its end."""
    critic: list[dict[str, Tensor]]
    """Whole gradients of a critic, of every step."""


def on_ranks(run: Callable[[int, str], None], folder: Path, num_ranks: int) -> None:
    """Call a function with each rank and a folder, for rank 0 here and for each other one in a process of its own."""
    others = multiprocessing.spawn(_on_rank, (run, str(folder)), num_ranks - 1, join=False)
    run(0, str(folder))
    while not others.join():
        pass


def _on_rank(index: int, run: Callable[[int, str], None], folder: str) -> None:
    torch.set_num_threads(1)
    run(index + 1, folder)


def model(seed: int = 0) -> PreTrainedModel:
    return new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=seed).model


def rounded(exact: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The model with its parameters in another number format, and, as transformers loads it, float32 rotations."""
    for parameter in exact.parameters():
        parameter.data = parameter.data.to(dtype)
    return exact


def rollouts() -> Rows:
    """Five groups of four rows of unequal lengths; the last group has no advantage, one token no log-prob."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 16, GROUPS * GROUP)
    prompts = [rng.integers(3, 20, 2 + group).tolist() for group in range(GROUPS) for _ in range(GROUP)]
    completions = [[*rng.integers(3, 20, length).tolist(), 1] for length in lengths]
    advantage = rng.normal(size=GROUPS * GROUP)
    advantage[-GROUP:] = 0.0
    logprobs = torch.from_numpy(rng.normal(-2.0, 0.3, sum(map(len, completions)))).float()
    logprobs[5] = float("nan")
    number = len(prompts)
    return learning_rows(
        prompts=Ragged.of(prompts),
        completions=Ragged.of(completions),
        logprobs=logprobs,
        temperature=torch.full((number,), 0.9),
        advantage=torch.from_numpy(advantage),
        group=torch.arange(GROUPS).repeat_interleave(GROUP),
        reward=torch.from_numpy(advantage > 0).double(),
        correct=torch.from_numpy(advantage > 0).double(),
    )


def state_of(case: Case, mesh: DeviceMesh | None) -> TrainState:
    """The train state before an update, whole or divided."""
    exact = model()
    if case.lora:
        state = TrainState(adapted(rounded(exact, case.dtype), case.dtype, mesh), case.settings.settings, seed=1)
    elif mesh is not None:
        shard(exact, mesh, case.dtype)
        state = TrainState(exact, case.settings.settings, seed=1)
    elif case.dtype == torch.float32:
        state = TrainState(exact, case.settings.settings, seed=1)
    else:
        state = TrainState(rounded(model(), case.dtype), case.settings.settings, 1, dict(exact.named_parameters()))
    state.adopt(case.settings.settings)
    return state


def adapted(base: PreTrainedModel, dtype: torch.dtype, mesh: DeviceMesh | None) -> PreTrainedModel:
    """The model with LoRA layers that have learnt something, so that gradients reach A as well."""
    add_lora(base, LoraConfig(rank=3, alpha=6), seed=7)
    moved(base)
    if mesh is not None:
        shard(base, mesh, dtype, undivided=trained_parameters(base).values())
    return base


def reference_logp(
    case: Case, mesh: DeviceMesh | None, trained: PreTrainedModel, logp_of: Callable[[PreTrainedModel], Tensor]
) -> Tensor:
    """The log-probs of another model, or of the one in training without its adapter."""
    if case.lora:
        with without_lora(trained):
            return logp_of(trained)
    return logp_of(other_model(case, mesh))


def other_model(case: Case, mesh: DeviceMesh | None) -> PreTrainedModel:
    """A model with other weights, whole or divided."""
    found = rounded(model(seed=5), case.dtype)
    if mesh is not None:
        shard(found, mesh, case.dtype)
    return found


def teacher_tokens(given: PreTrainedModel, rows: Rows, budget: Budget) -> dict[str, Tensor]:
    """A teacher's three most likely tokens at every place."""
    found = all_tokens(given, rows, budget, asked=Asked(top_k=3))
    assert found.top_ids is not None
    assert found.top_logp is not None
    return {"teacher.ids": found.top_ids, "teacher.top": found.top_logp}


def whole_gradients(optimizer: Optimizer, parameters: Mapping[str, Parameter], into: list[dict[str, Tensor]]) -> None:
    """Before each step of an optimiser, append the gradients of its parameters."""

    def before_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        grads = {name: parameter.grad for name, parameter in parameters.items()}
        into.append({name: whole(grad).clone() for name, grad in grads.items() if grad is not None})

    optimizer.register_step_pre_hook(before_step)


def taken(name: str, ranks: Ranks, change: Callable[[Trial], Trial] = lambda given: given) -> Taken:
    """Take an update as one of the ranks; every rank returns the same."""
    case = replace(CASES[name], settings=change(CASES[name].settings))
    mesh, rows, settings = mesh_of(ranks.num_ranks, torch.device("cpu")), rollouts(), case.settings
    state, budget = state_of(case, mesh), Budget(settings.micro_tokens, ranks=ranks)
    assert form_of(state.model) == "packed"
    plan = plan_of(rows, settings)
    beats: list[int] = []

    def logp_of(given: PreTrainedModel) -> Tensor:
        return all_tokens(given, rows, budget, beats.append).logp

    known: dict[str, Tensor] = {}
    found, critic = Taken([], [], [], {}, {}, {}, []), None
    if len(plan) > 1:
        known["old.logp"] = logp_of(state.model)
        found.logps.append(known["old.logp"])
    if settings.kl_coef:
        known["reference.logp"] = reference_logp(case, mesh, state.model, logp_of)
    whole_gradients(state.optimizer, state.masters, found.gradients)
    if "teacher.top" in settings.needs:
        known |= teacher_tokens(other_model(case, mesh), rows, budget)
    if case.critic is not None:
        critic = Critic(model(seed=3), case.critic, mesh)
        whole_gradients(critic.optimizer, critic.trained, found.critic)
        known["critic.value"] = critic.all_values(rows, budget, beats.append)
        found.logps.append(known["critic.value"])
    options: dict[str, Any] = {"check": lambda _rows, logp: found.logps.append(logp), "on_rows": beats.append}
    steps = optimised(state, rows, settings, known, plan, budget=budget, critic=critic, **options)
    found.metrics.extend(step.metrics for step in steps)
    num_passes = (len(plan) > 1) + bool(settings.kl_coef) + bool(critic)
    assert sum(beats) == rows.num_rows * num_passes + sum(map(len, plan)) * (1 + bool(critic))
    found.weights.update({name: whole(master.detach()).clone() for name, master in state.masters.items()})
    found.average.update({name: whole(average).clone() for name, average in state.average.items()})
    if case.lora:
        below = {name: each for name, each in state.model.named_parameters() if name not in state.masters}
        found.base.update({name.replace(".base_layer", ""): whole(each).clone() for name, each in below.items()})
    return found
