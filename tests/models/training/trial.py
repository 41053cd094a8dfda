"""An objective of functions with the settings of its steps, changed by `dataclasses.replace`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from gradus.components.chosen import OptimizerConfig
from gradus.models.objectives.aggregations.means import token_mean
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.losses.regularising.regularisers import entropy, k3
from gradus.models.objectives.objective import Advantage, Objective, Part, Term
from gradus.models.objectives.rows import Rows
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.update import StepResult, optimise, planned_steps

Losses = Callable[[Rows], tuple[Tensor, dict[str, Tensor]]]


def given_advantage(rows: Rows) -> Tensor:
    """The advantages that the rows came with."""
    return rows["advantage"]


@dataclass(frozen=True)
class Trial:
    """A loss of all rows, losses of rows of other origins, regularisers; and settings, which have defaults here."""

    loss: Losses = clip
    aggregation: Callable[[Rows], Tensor] = token_mean
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    correction: Losses | None = None
    weights: tuple[Losses, ...] = ()
    step_advantage: Callable[[Rows], Tensor] | None = None
    needs: frozenset[str] = frozenset()
    acts_without_advantage: bool = False
    needs_sampler: bool = True
    origin_losses: tuple[tuple[str, Losses, bool], ...] = ()
    """Name, loss and whether it acts without an advantage; the rows' column `terms` says which take it."""
    count_zero_std_groups: bool = True
    max_kl: float | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig.usual)
    lr: float = 5e-5
    warmup_steps: int = 0
    decay_steps: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = 1.0
    epochs: int = 1
    minibatch_groups: int = 0
    micro_tokens: int = 16_384
    activation_checkpointing: bool = False
    ema_decay: float = 0.0

    @property
    def settings(self) -> StepConfig:
        """The settings of the steps."""
        names = {field.name for field in fields(self)} & set(StepConfig.model_fields)
        return StepConfig(**{name: getattr(self, name) for name in names})

    @property
    def objective(self) -> Objective:
        """The objective."""
        reads: Any = self.needs or None
        own = Advantage(Part(given_advantage)) if self.step_advantage is None else None
        step = Part(self.step_advantage or given_advantage, reads=reads and reads | {"reward", "group", "correct"})
        aggregation, weights = Part(self.aggregation), tuple(Part(each, reads=reads) for each in self.weights)

        def term(loss: Losses, *, acts: bool, sampler: bool, name: str = "") -> Term:
            return Term(
                Part(loss, reads=reads and reads | {"now.logp", "old.logp", "advantage"}),
                aggregation,
                weights=weights,
                name=name,
                acts_without_advantage=acts,
                needs_sampler=sampler,
            )

        def regulariser(loss: Losses, coefficient: float, needs: str) -> Term:
            part = Part(loss, reads=frozenset(["now.logp", needs]))
            return Term(
                part,
                aggregation,
                coefficient=coefficient,
                acts_without_advantage=True,
                needs_sampler=False,
                regulariser=True,
            )

        return Objective(
            (own or Advantage(step, "step"),),
            (
                term(self.loss, acts=self.acts_without_advantage, sampler=self.needs_sampler),
                *(term(loss, acts=acts, sampler=False, name=f"{name}_") for name, loss, acts in self.origin_losses),
                *([regulariser(k3, self.kl_coef, "reference.logp")] if self.kl_coef else []),
                *([regulariser(entropy, self.entropy_coef, "now.entropy")] if self.entropy_coef else []),
            ),
            None if self.correction is None else Part(self.correction),
        )


def plan_of(rows: Rows, trial: Trial, seed: int = 0) -> tuple[Tensor, ...]:
    """The steps that an update would take."""
    return planned_steps(rows, trial.objective, trial.settings, np.random.default_rng(seed))


def optimised(
    state: TrainState,
    rows: Rows,
    trial: Trial,
    known: Mapping[str, Tensor | None] | None = None,
    plan: Sequence[Tensor] | None = None,
    **options: Any,
) -> list[StepResult]:
    """Take the steps of a plan, by default that of the rows; `known` are columns of tokens."""
    found = {name: values for name, values in (known or {}).items() if values is not None}
    steps = plan_of(rows, trial) if plan is None else plan
    return list(optimise(state, rows.adding(of_tokens=found), steps, trial.objective, trial.settings, **options))


def all_logprobs(model: PreTrainedModel, rows: Rows, budget: Budget | int = 10_000) -> Tensor:
    """The model's log-prob of every completion token, in their order."""
    return all_tokens(model, rows, Budget(budget) if isinstance(budget, int) else budget).logp
