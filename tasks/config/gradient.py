"""The stage `gradient`, which compares objectives on stored rows, with its settings."""

from pydantic import Field

from gradus.components.settings import MAX_ROWS
from gradus.components.stage import CHECKPOINTS, Role, Stage
from gradus.tasks.config.learning import SCORE_COLUMNS, UPDATE, UpdateConfig


class GradientConfig(UpdateConfig):
    """An update whose gradient is computed, and whose step is taken back."""

    num_coordinates: int = Field(default=2**20, ge=2, le=2**28)
    """Numbers that are kept of a gradient, for its angle to others: all of a policy with no more weights, else sums."""
    max_held_out: int = Field(default=512, ge=1, le=MAX_ROWS)
    """Held-out rollouts whose log-probs are compared before and after a step, at most; groups are taken whole."""


def _reads(config: GradientConfig) -> dict[str, tuple[str, ...]]:
    """The columns of scores that a gradient reads."""
    return {**UPDATE.reads(config), "held_scores": SCORE_COLUMNS}


GRADIENT = Stage(
    "gradient",
    "Compute the gradient of an objective on stored rollouts, without a step.",
    version=1,
    makes="gradients",
    settings=GradientConfig,
    takes=(
        *UPDATE.takes,
        Role("sampler", "policy that sampled, if the updated one is a later one", CHECKPOINTS, default=None),
        Role("held_rollouts", "rollouts whose log-probs a step changes", "rollouts", many=True, default=None),
        Role("held_scores", "their scores", "scores", many=True, default=None),
    ),
    check="gradus.tasks.preflight.abilities:check_update",
    reads=_reads,
    worker="policy",
    verb=False,
    run="gradus.tasks.stages.gradient:run",
)
