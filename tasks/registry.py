"""Every stage by name: its version, the table it makes, its settings, its function and the process it needs.

Light on purpose: nothing here imports what a stage computes with, so that flows may read it.
A version is raised when a stage's result changes for the same inputs; that makes old artifacts stale.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from data.errors import UsageError
from tasks import config
from tasks.config import Config, RolloutConfig
from tasks.context import StageFunction

WorkerKind = Literal["", "policy", "sampler", "engine", "score"]


@dataclass(frozen=True)
class StageSpec:
    """What the adapter must know of a stage.

    `worker` is the kind of warm child process it runs in; empty for a stage that is light enough to run in the flow's.
    `draws` says whether the result depends on a seed, which is then part of its identity.
    """

    name: str
    version: int
    table: str
    config: type[config.Config]
    worker: WorkerKind = ""
    draws: bool = True

    def worker_for(self, settings: Config, *, apart: bool = False) -> WorkerKind:
        """The worker for these settings; vLLM has one of its own, whose end frees all that it held.

        `apart` keeps sampling out of the process that learns, so that both go on at once.
        """
        if not isinstance(settings, RolloutConfig):
            return self.worker
        if settings.engine == "vllm":
            return "engine"
        return "sampler" if apart else self.worker

    def function(self) -> StageFunction:
        """Import the stage's module and give its `run`."""
        return cast("StageFunction", import_module(f"tasks.{self.name}").run)


STAGES = {
    spec.name: spec
    for spec in (
        StageSpec("ingest", 1, "problems", config.IngestConfig, draws=False),
        StageSpec("curate", 1, "plan", config.CurateConfig),
        StageSpec("hint", 1, "hints", config.HintConfig, draws=False),
        StageSpec("escalate", 1, "plan", config.EscalateConfig),
        StageSpec("rollout", 2, "rollouts", config.RolloutConfig, worker="policy"),
        StageSpec("score", 2, "scores", config.ScoreConfig, worker="score", draws=False),
        StageSpec("difficulty", 2, "difficulty", config.DifficultyConfig, draws=False),
        StageSpec("update", 1, "checkpoints", config.UpdateConfig, worker="policy"),
        StageSpec("warmstart", 1, "checkpoints", config.WarmstartConfig, worker="policy"),
        StageSpec("evaluate", 2, "evaluations", config.EvaluateConfig),
    )
}


def stage_spec(name: str) -> StageSpec:
    """The stage of that name; UsageError lists the names there are."""
    if name not in STAGES:
        raise UsageError(f"there is no stage {name!r}", hint=f"the stages are {', '.join(STAGES)}")
    return STAGES[name]
