"""The arguments of an update."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradus.components import Need
from gradus.models.objectives.advantages import StepAdvantage
from gradus.models.objectives.aggregations import Aggregation
from gradus.models.objectives.aggregations.means import token_mean
from gradus.models.objectives.importance_sampling import ImportanceWeights
from gradus.models.objectives.losses import Loss
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.token_weights import TokenWeights


@dataclass(frozen=True)
class OriginLoss:
    """The loss of rows of an origin, in place of the update's."""

    origin: str
    loss: Loss
    acts_without_advantage: bool = False
    needs_sampler: bool = True


@dataclass(frozen=True)
class OptimizerChoice:
    """An optimiser by name with its own settings; gradus.models.training.optimizers.arguments has the names."""

    name: str = "adamw"
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def label(self) -> str:
        """One name for each optimiser."""
        return "adamw" if self.name == "AdamW" else self.name


@dataclass(frozen=True)
class UpdateSettings:
    """The arguments of an update, components with settings bound; gradus.tasks.config.learning says what each is."""

    loss: Loss = clip
    aggregation: Aggregation = token_mean
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    correction: ImportanceWeights | None = None
    """None weighs every token alike."""
    weights: tuple[TokenWeights, ...] = ()
    step_advantage: StepAdvantage | None = None
    """Makes the advantages anew for every step; None takes those of the rollouts."""
    needs: frozenset[Need] = frozenset()
    """What these components read of every token of a step."""
    acts_without_advantage: bool = False
    """Whether the loss has a gradient where the advantage is 0."""
    needs_sampler: bool = True
    """Whether the loss needs rows with the log-probs of a sampler."""
    origin_losses: tuple[OriginLoss, ...] = ()
    """Losses of rows of other origins than the policy; see gradus.models.training.rollouts.Rollouts.origin."""
    teacher_top_k: int = 0
    """K: the teacher's most likely tokens that are asked for."""
    count_zero_std_groups: bool = True
    max_kl: float | None = None
    optimizer: OptimizerChoice = field(default_factory=OptimizerChoice)
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
