"""Every component of an objective in its declared company, and the gradient that it trains on a tiny policy.

The company of a component is what it declares: an advantage that the loss can take, an aggregation over what both are
means of. New components are found by themselves; only those whose settings need a number are listed.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.components import OF_ROWS
from gradus.components.description import Component
from gradus.components.registry import components
from gradus.components.rows import Marks
from gradus.data.lake.schema import OF_MARKS
from gradus.models.objectives.columns import COLUMNS
from gradus.models.objectives.objective import Objective
from gradus.models.objectives.ragged import Ragged
from gradus.models.objectives.rows import Rows
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.learning_rows import learning_rows
from gradus.models.training.parallel import ALONE, Ranks
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.state import TrainState
from gradus.models.training.update import optimise
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rounds import is_carried
from gradus.tasks.stages.update.work import objective_of

SETTINGS: Mapping[str, dict[str, Any]] = {
    "aggregation fixed_length": {"length_tokens": 4},
    "loss entropy_band": {"mean": 4.0},
    "advantage gtpo": {"most": 4.0},
    "advantage pass_at_k": {"k": 2},
    "correction rejection": {"low": 0.5, "high": 2.0},
}
"""Settings by component: those without a default, and those whose default makes no gradient here."""
COMPANY = ("grpo", "reward", "token_mean", "sequence_mean", "clip", "reinforce")
"""Chosen first where several fit."""
TOLERANCE = 2e-5
"""Difference of two gradients over their norm: log-probs are float32, whose eps is 1.2e-7."""
LOOSER = {"weight hapo": 5e-5, "advantage rent": 3e-4}
"""HAPO and RENT divide by the spread of the policy's entropies, which are nearly equal for a new policy."""


def _fitting(found: Mapping[str, Component], fits: Any) -> str:
    names = sorted(found, key=lambda name: COMPANY.index(name) if name in COMPANY else len(COMPANY))
    return next(name for name in names if fits(found[name]))


def _aggregation(*parts: Component) -> str:
    over = {part.mean_over for part in parts if part.mean_over}
    return _fitting(components("aggregation"), lambda each: not over or {each.mean_over} == over)


def _company(component: Component) -> dict[str, str]:
    """The names of a loss, an advantage and an aggregation that a component goes with, itself among them."""
    advantages, losses = components("advantage"), components("loss")

    def agree(advantage: Component, loss: Component) -> bool:
        over = {part.mean_over for part in (advantage, loss) if part.mean_over}
        return bool(set(advantage.returns) & set(loss.takes)) and len(over) < 2

    if component.kind == "loss":
        name = _fitting(advantages, lambda each: not component.takes or agree(each, component))
        parts = [component, *([advantages[name]] if component.takes else [])]
        return {"loss": component.name, "advantage": name, "aggregation": _aggregation(*parts)}
    if component.kind == "advantage":
        name = _fitting(losses, lambda each: each.takes and agree(component, each))
        return {"loss": name, "advantage": component.name, "aggregation": _aggregation(component, losses[name])}
    found = {"loss": "clip", "advantage": "grpo", "aggregation": "token_mean"}
    return {**found, component.kind: component.name} if component.kind == "aggregation" else found


def config_of(component: Component) -> UpdateConfig:
    """The update of a component in its company."""
    term: dict[str, Any] = {
        kind: {"name": name, **SETTINGS.get(f"{kind} {name}", {})} for kind, name in _company(component).items()
    }
    own = {"name": component.name, **SETTINGS.get(f"{component.kind} {component.name}", {})}
    if component.kind == "weight":
        term["weights"] = [own]
    more = {"correction": own} if component.kind == "correction" else {}
    # No step moves the weights by as much as float32 can hold, so that cases share a policy.
    fixed = {"optimizer": {"name": "sgd"}, "lr": 1e-30, "warmup_steps": 0, "max_grad_norm": 1e9}
    return UpdateConfig.model_validate({"terms": [term], **more, **fixed})


EVERY: Mapping[str, Component] = {
    f"{kind} {name}": component for kind in OF_ROWS for name, component in components(kind).items()
}


@cache
def rollouts() -> Rows:
    """Six groups: two mixed, one of right rows alone, one of a single row, one with a row of another origin, one whose
    first row has no tokens; a token without a log-prob, two that carry no loss, ratios that clips cut.
    """
    rng = np.random.default_rng(5)
    sizes = [4, 4, 3, 1, 3, 3]
    group = np.repeat(np.arange(6), sizes)
    number = len(group)
    lengths = rng.integers(1, 12, number)
    lengths[15] = 0
    prompts = [[*range(5, 8 + each)] for each in group]
    completions = [rng.integers(3, 20, length).tolist() for length in lengths]
    completions[1][:4] = completions[0][:4]
    correct = (np.arange(number) % 3 == 0).astype(float)
    correct[group == 2] = 1.0
    size = int(lengths.sum())
    logprobs = torch.from_numpy(rng.normal(-2.9, 0.3, size)).float()
    logprobs[3] = torch.nan
    trained = torch.ones(size, dtype=torch.bool)
    trained[[1, 20]] = False
    origin = np.array(["own"] * number)
    origin[12] = "expert"
    return learning_rows(
        prompts=Ragged.of(prompts),
        completions=Ragged.of(completions),
        logprobs=logprobs,
        temperature=torch.full((number,), 0.9),
        trained=trained,
        measured={"credit": torch.from_numpy(rng.normal(size=size))},
        group=torch.from_numpy(group),
        reward=torch.from_numpy(correct + np.where(correct > 0, 0.1, 0.0) * rng.random(number) * (group < 2)),
        correct=torch.from_numpy(correct),
        origin=origin,
    )


def with_carried(rows: Rows, needs: frozenset[str]) -> Rows:
    """The rows with what trackers, problems and marks would bring: numbers of rows in [0, 1], two marks in two rows."""
    rng = np.random.default_rng(11)
    carried = sorted(filter(is_carried, needs))
    long = [row for row in range(rows.num_rows) if rows.lengths[row] >= 4]
    marked = torch.tensor([long[0], long[0], long[2], long[2]])
    marks = Marks(
        marked,
        torch.tensor([0, 2, 0, 1]),
        torch.tensor([2, 4, 1, 4]),
        torch.tensor([0.5, 1.0, 0.0, 0.25], dtype=torch.float64),
        np.array(["a", "b", "a", "b"], dtype=np.object_),
    )
    listed = {each for each in carried if each.endswith((".tokens", ".logp"))}  # a measure's number for each token
    of_tokens = {each: torch.from_numpy(rng.uniform(-3.0, 0.0, len(rows.row))) for each in sorted(listed)}
    numbers = [each for each in carried if each not in listed and not each.startswith(OF_MARKS)]
    of_rows = {each: torch.from_numpy(rng.random(rows.num_rows)) for each in numbers}
    whole_rows = rows.adding(of_rows, of_tokens)
    names = [each for each in carried if each.startswith(OF_MARKS)]
    whole_rows._marks.update(dict.fromkeys(names, marks))  # pyright: ignore[reportPrivateUsage]
    return whole_rows


def _known(rows: Rows, needs: frozenset[str]) -> dict[str, Tensor]:
    """What other models say of the tokens: an older policy of ratios to e^0.6, a reference, a teacher, a critic."""
    own, generator = _own(), torch.Generator().manual_seed(2)
    size = len(own)
    found = {"old.logp": own + 0.2 * torch.randn(size, generator=generator)}
    teacher = torch.log_softmax(torch.randn(size, 20, generator=generator), -1)
    found["teacher.ids"] = teacher.topk(3).indices if "teacher.top" in needs else teacher[:, :0].long()
    given = {name: column for name, column in COLUMNS.items() if not name.startswith("now.") and name not in rows}
    for name in sorted(needs & given.keys() - {"advantage", "old.logp", "teacher.ids"}):
        noise = 0.5 * torch.randn(size, generator=generator)
        found[name] = teacher.topk(3).values if given[name].axis == "vocabulary" else own + noise
    return found if "teacher.top" in needs else {name: each for name, each in found.items() if name != "teacher.ids"}


@cache
def policy() -> PreTrainedModel:
    """A tiny policy, which every rank holds whole; tests.models.training.parallel.test_ranks divides it."""
    return new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=64, seed=0).model


@cache
def _own() -> Tensor:
    """The policy's own log-probs."""
    return all_tokens(policy(), rollouts(), Budget(10_000)).logp


def prepared(name: str) -> tuple[UpdateConfig, Objective, Rows, TrainState]:
    """The settings, the objective, the rows and the train state of a step with a component."""
    config = config_of(EVERY[name])
    objective = objective_of(config)
    rows = objective.with_advantages(with_carried(rollouts(), config.needs))
    rows = rows.adding(of_tokens=_known(rows, config.needs))
    state = TrainState(policy(), config, seed=1)
    state.adopt(config)
    return config, objective, rows, state


def gradient_of(state: TrainState) -> Tensor:
    """The gradient that the trained weights hold, flat."""
    grads = [each.grad for each in state.masters.values()]
    return torch.cat([each.flatten().clone() for each in grads if each is not None])


def trained_by(name: str, micro_tokens: int, ranks: Ranks = ALONE) -> tuple[Tensor, dict[str, float]]:
    """The gradient of one step with a component, flat, and the step's metrics."""
    (config, objective, rows, state), found = prepared(name), list[Tensor]()
    budget = Budget(micro_tokens, ranks=ranks)
    state.optimizer.register_step_pre_hook(lambda *_: found.append(gradient_of(state)))
    (step,) = optimise(state, rows, [torch.arange(rows.num_rows)], objective, config, budget=budget)
    (gradient,) = found
    return gradient, step.metrics
