"""The stages score and evaluate: their declarations, their settings and those of rewards."""

from typing import Annotated

from pydantic import Field, model_validator

from gradus.components.addresses import VARIABLE
from gradus.components.chosen import Chosen
from gradus.components.settings import INCIDENTAL, LIMIT, MAX_ROWS, Config, empty, unset
from gradus.components.stage import Role, Short, Stage
from gradus.data.lake.schema import MAX_SAMPLES
from gradus.tasks.config.curation import MAPS

MARGIN = 0.02
"""Differences of pass@1 below this do not matter unless another margin is given: ten problems of 500."""


class RewardConfig(Chosen, kind="reward"):
    """One reward with its settings, and its weight."""

    weight: float = 1.0
    """Weight in the sum."""
    decides: bool = Field(default=False, exclude_if=unset)
    """This reward decides the column `correct`, where several could."""
    only: tuple[str, ...] = Field(default=(), exclude_if=empty)
    """Kinds of problems that it judges, values of score.reward_by; empty for all."""
    variables: tuple[Annotated[str, Field(pattern=VARIABLE)], ...] = Field(default=(), exclude_if=empty)
    """Environment variables that its process sees, such as JUDGE_API_KEY; their values are stored nowhere.

    A name ends in _API_KEY, or your own environment lists it in GRADUS_KEY_VARIABLES.
    """
    isolated: bool = Field(default=False, exclude_if=unset)
    """A function of yours runs in the sandbox: no network, no files but its modules and the installed packages."""

    @property
    def needs_sandbox(self) -> bool:
        """Return whether it runs programs of completions, or itself runs in the sandbox."""
        return self.isolated or self.declared.sandbox or self.declared.isolated


class ScoreConfig(Config):
    """Judging of rollouts."""

    rewards: tuple[RewardConfig, ...] = Field(default_factory=lambda: (RewardConfig(name="math"),))
    """The rewards; the one that `decides`, else the first that judges correctness, decides the column `correct`."""
    reward_by: str = Field(default="", pattern=r"^(domain|source|problem\..+|)$", exclude_if=empty)
    """Column that rewards with `only` go by: domain, source, or problem.KEY for a key of a problem's extra."""
    correct_at: float | None = Field(default=None, allow_inf_nan=False, exclude_if=unset)
    """Threshold: a row without a verdict of its own is correct if the value of the deciding reward is at least this.

    If no reward decides, the weighted sum is compared. Without a threshold only the values 1 and 0 of a deciding reward
    are verdicts.
    """
    item_timeout_s: float = Field(default=5.0, gt=0.0, le=86_400.0)
    """Wall limit for one completion."""
    max_chars: int = Field(default=50_000, ge=1, le=MAX_ROWS)
    """Completions with more characters are judged by their last `max_chars`."""
    max_error_frac: float = Field(default=0.05, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of errors and time-outs fails the stage after the good rows are kept.

    A reward of yours is asked no more after so large a share, and at least 128, failed one after another.
    """
    retries: int = Field(default=0, ge=0, le=20, json_schema_extra=INCIDENTAL)
    """Number of times a row that could not be judged (an error or a time-out) is judged again."""
    retry_wait_s: float = Field(default=1.0, gt=0.0, le=3600.0, json_schema_extra=INCIDENTAL)
    """Wait before the first of these times; doubled before each further one."""
    shard_rows: int = Field(default=4096, ge=1, le=MAX_ROWS)
    """Rows per shard."""

    @model_validator(mode="after")
    def _agrees(self) -> "ScoreConfig":
        if sum(reward.decides for reward in self.rewards) > 1:
            raise ValueError("more than one reward has decides = true")
        if bool(self.reward_by) != any(reward.only for reward in self.rewards):
            raise ValueError("reward_by and only go together: rewards with `only` name values of the column reward_by")
        for reward in self.rewards:
            if reward.isolated and not reward.is_users:
                raise ValueError(f"{reward.name}: isolated is for a function of yours, path/to/file.py:function")
            if reward.declared.sandbox and reward.settings["total_s"] >= self.item_timeout_s:
                limits = f"{reward.settings['total_s']:g} is not below item_timeout_s = {self.item_timeout_s:g}"
                raise ValueError(f"{reward.name}: total_s = {limits}, after which a row is not judged")
        return self


SCORE = Stage(
    "score",
    "Judge completions.",
    version=3,
    makes="scores",
    settings=ScoreConfig,
    takes=(
        Role("rollouts", "rollouts: a file with problem_id, completion, answer; or an artifact"),
        Short("rewards", "NAME[=WEIGHT]; repeatable", "--reward", list[str], read="rewards"),
        Role("problems", "problems, where the rollouts have no answer", default=None),
        MAPS,
    ),
    draws=False,
    worker="score",
    gate="gradus.tasks.stages.gates:score_breach",
    run="gradus.tasks.stages.score.stage:run",
)


class EvaluateConfig(Config):
    """Figures to compute from the scored rollouts of one policy on one problem set."""

    ks: tuple[Annotated[int, Field(ge=1, le=MAX_SAMPLES)], ...] = Field(default=(1, 8), min_length=1)
    """The k of pass@k."""
    confidence: float = Field(default=0.95, gt=0.0, lt=1.0)
    """Coverage of the intervals."""
    max_unjudged_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of rollouts without a verdict fails the stage; 1 accepts an evaluation of rewards alone."""


EVALUATE = Stage(
    "evaluate",
    "Compute the pass rates of a policy, with intervals.",
    version=6,
    makes="evaluations",
    settings=EvaluateConfig,
    verb=False,
    gate="gradus.tasks.stages.gates:verdict_breach",
    run="gradus.tasks.stages.evaluate:run",
)
