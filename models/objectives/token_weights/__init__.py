"""Token weights: `(StepView, *, settings) -> ((M,) weights, metrics)`, from all tokens of an optimiser step.

Each token's loss is multiplied by its weights; the denominator of the aggregation stays that of all counted tokens.
Metrics are (M,), reported as those of losses are.
"""

from collections.abc import Callable

from torch import Tensor

from gradus.models.objectives.batch import StepView

TokenWeights = Callable[[StepView], tuple[Tensor, dict[str, Tensor]]]
