"""Every stage by name: its version, the table it makes, its settings, its function and the process it needs.

Light on purpose: nothing here imports what a stage computes with, so that flows may read it.
A version is raised when a stage's result changes for the same inputs; that makes old artifacts stale.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from gradus.components.chosen import chosen_in
from gradus.components.settings import Config
from gradus.data.errors import UsageError
from gradus.tasks.config.curation import CurateConfig, DifficultyConfig, EscalateConfig, HintConfig
from gradus.tasks.config.evaluate import EvaluateConfig
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.config.learning import GivenConfig, UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.stages.context import StageFunction

WorkerKind = Literal["", "policy", "sampler", "engine", "score", "user"]


@dataclass(frozen=True)
class StageSpec:
    """What the adapter must know of a stage.

    `worker` is the kind of warm child process it runs in; empty for a stage that is light enough to run in the flow's.
    `draws` says whether the result depends on a seed, which is then part of its identity.
    `file` is the module below tasks/stages that has its `run`, if that is not named like the stage.
    """

    name: str
    version: int
    table: str
    config: type[Config]
    worker: WorkerKind = ""
    draws: bool = True
    file: str = ""

    def worker_for(self, settings: Config, *, separate_sampler: bool = False) -> WorkerKind:
        """The worker for these settings; vLLM has one of its own, whose end frees all that it held.

        A stage that is light enough for the flow's process leaves it if a user's file takes part.

        `separate_sampler` keeps sampling out of the process that learns, so that both go on at once.
        """
        counts_tokens = isinstance(settings, CurateConfig) and settings.counts_tokens
        if counts_tokens or (isinstance(settings, IngestConfig) and settings.max_prompt_tokens):
            return "policy"
        if not isinstance(settings, RolloutConfig):
            return self.worker or ("user" if any(not each.is_ours for each in chosen_in(settings)) else "")
        if settings.engine == "vllm":
            return "engine"
        return "sampler" if separate_sampler else self.worker

    @property
    def module(self) -> str:
        """The module that has the stage's `run`."""
        return f"gradus.tasks.stages.{self.file or self.name}"

    def function(self) -> StageFunction:
        """Import the stage's module and return its `run`."""
        return cast("StageFunction", import_module(self.module).run)


STAGES = {
    spec.name: spec
    for spec in (
        StageSpec("ingest", 2, "problems", IngestConfig, draws=False),
        StageSpec("curate", 2, "plan", CurateConfig),
        StageSpec("hint", 1, "hints", HintConfig, draws=False),
        StageSpec("escalate", 1, "plan", EscalateConfig),
        StageSpec("rollout", 2, "rollouts", RolloutConfig, worker="policy", file="rollout.stage"),
        StageSpec("given", 2, "rollouts", GivenConfig, worker="policy", draws=False),
        StageSpec("score", 3, "scores", ScoreConfig, worker="score", draws=False, file="score.stage"),
        StageSpec("difficulty", 2, "difficulty", DifficultyConfig, draws=False),
        StageSpec("update", 3, "checkpoints", UpdateConfig, worker="policy", file="update.stage"),
        StageSpec("warmstart", 2, "checkpoints", WarmstartConfig, worker="policy"),
        StageSpec("evaluate", 4, "evaluations", EvaluateConfig),
    )
}


def stage_spec(name: str) -> StageSpec:
    """The stage of that name; UsageError lists the names there are."""
    if name not in STAGES:
        raise UsageError(f"there is no stage {name!r}", hint=f"the stages are {', '.join(STAGES)}")
    return STAGES[name]
