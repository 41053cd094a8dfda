"""The stages that make a policy, and `given`, whose rows an update learns from; their settings are in learning.py."""

from gradus.components.stage import CHECKPOINTS, Role, Stage
from gradus.tasks.config.learning import GivenConfig, UpdateConfig, WarmstartConfig
from gradus.tasks.config.prompts import PROMPT_COLUMNS, worked_columns
from gradus.tasks.config.roles import POLICY, PROBLEMS

SCORE_COLUMNS = ("rollout_id", "reward", "correct")
"""The columns of scores that an update reads."""
UPDATE = Stage(
    "update",
    "Update a policy from scored rollouts.",
    version=3,
    makes=CHECKPOINTS,
    settings=UpdateConfig,
    takes=(
        Role("rollouts", "rollouts; repeatable", many=True),
        Role("scores", "their scores; repeatable", many=True),
        POLICY,
        Role("reference", "reference policy for the KL term", CHECKPOINTS, default=None, used="loads_reference"),
        Role("teacher", "policy that a loss distils from", CHECKPOINTS, default=None, used="needs_teacher"),
    ),
    check="gradus.tasks.preflight.updates:check_update",
    gate="gradus.tasks.stages.gates:update_breach",
    reads=lambda _: {"scores": SCORE_COLUMNS},
    incidental=("save",),
    worker="policy",
    run="gradus.tasks.stages.update.stage:run",
)
WARMSTART = Stage(
    "warmstart",
    "Fine-tune on worked solutions, so that RL has something to start from.",
    version=2,
    makes=CHECKPOINTS,
    settings=WarmstartConfig,
    takes=(PROBLEMS, Role("policy", "policy to begin with; none: random", CHECKPOINTS, default=None)),
    reads=lambda settings: {"problems": worked_columns(settings.template)},
    worker="policy",
    run="gradus.tasks.stages.warmstart:run",
)
GIVEN = Stage(
    "given",
    "Make rows to learn from of worked solutions, or of a file.",
    version=2,
    makes="rollouts",
    settings=GivenConfig,
    draws=False,
    verb=False,
    reads=lambda settings: {"problems": PROMPT_COLUMNS if settings.rows else worked_columns(settings.template)},
    worker="policy",
    run="gradus.tasks.stages.given:run",
)
