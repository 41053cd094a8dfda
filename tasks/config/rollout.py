"""The stages rollout and wave: their declarations, their settings, those of engines, and the models that sample."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gradus.components.addresses import is_place
from gradus.components.chosen import WaveConfig, chosen_in
from gradus.components.settings import (
    INCIDENTAL,
    LIMIT,
    MAX_PROCESSES,
    MAX_ROUNDS,
    MAX_ROWS,
    MAX_TOKENS,
    MAX_TRIES,
    Config,
    empty,
    unset,
)
from gradus.components.stage import Role, Short, Stage
from gradus.data.errors import shortened
from gradus.data.lake.schema import PLAN
from gradus.models.engines.settings import ServerConfig, VllmConfig
from gradus.models.templates import PromptConfig
from gradus.tasks.config.curation import POLICY, PROBLEMS, PROMPT_COLUMNS, CurateConfig, SampleConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rounds import round_columns

Stops = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=16)]
"""Stop strings: none of them empty, at most 16."""


class RayConfig(Config):
    """Several workers for one stage, by Ray."""

    workers: int = Field(default=0, ge=0, le=MAX_PROCESSES)
    """Processes that sample at once, each with an engine of its own; 0: the stage samples itself, without Ray."""
    address: str = ""
    """A cluster to join from one of its machines, auto or HOST:PORT; empty starts a Ray of our own on this machine.

    A cluster's machines need the same gradus installed, and GRADUS_HOME at the same path on a shared file system.
    """
    cpus: float = Field(default=1.0, gt=0.0, le=MAX_PROCESSES)
    """CPUs that Ray sets aside for a worker; how many threads it computes with is OMP_NUM_THREADS, as without Ray."""
    gpus: float = Field(default=0.0, ge=0.0, le=MAX_PROCESSES)
    """GPUs that Ray sets aside for a worker; 0 shows it none."""
    max_restarts: int = Field(default=2, ge=0, le=MAX_TRIES)
    """Maximum number of restarts of a worker that died, in one attempt; only the shards it had are sampled again."""
    start_s: float = Field(default=600.0, gt=0.0)
    """Limit until a worker has its place in the cluster and its engine, seconds."""

    @field_validator("address")
    @classmethod
    def _is_a_cluster(cls, address: str) -> str:
        if address not in ("", "auto") and not is_place(address):
            raise ValueError(f"{shortened(address)!r} is neither auto nor HOST:PORT; write it as node1:6379")
        return address


class RolloutConfig(Config):
    """Generation of rollouts from a plan."""

    engine: Literal["transformers", "vllm", "openai"] = "transformers"
    """Engine that samples."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    """Settings of the engine vllm."""
    server: ServerConfig = Field(default_factory=ServerConfig)
    """Settings of the engine openai."""
    ray: RayConfig = Field(default_factory=RayConfig, json_schema_extra=INCIDENTAL)
    """Settings of several workers: where the same samples are made, and by how many."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the sampler; auto is what the checkpoint was saved in."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Device on which the engine transformers computes; auto takes the GPU where PyTorch sees one, else the CPU."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus mass sampled from."""
    top_k: int = Field(default=0, ge=0, le=MAX_TOKENS)
    """Most probable tokens sampled from; 0 for all."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """Prompt of a problem."""
    stop: Stops = Field(default=(), exclude_if=empty)
    """A completion ends with the first of these texts that it contains, beside the policy's own end."""
    shard_rows: int = Field(default=512, ge=1, le=MAX_ROWS)
    """Rollouts per shard, in whole groups where they fit; a crash loses at most one open shard."""
    batch_rows: int = Field(default=512, ge=1, le=MAX_ROWS)
    """Rollouts generated together."""
    flush_s: float = Field(default=10.0, ge=0.0, json_schema_extra=INCIDENTAL)
    """Seconds between two saves of the finished rows of an open shard, by engines that cannot sample the same again."""
    max_failed_frac: float = Field(default=0.01, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """A larger share of requests that failed for good fails the stage; what was sampled is kept.

    No more are sent after so large a share, and at least 128, failed one after another.
    """
    max_truncated_frac: float = Field(default=1.0, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of completions cut off by max_tokens fails the stage."""

    @property
    def is_text(self) -> bool:
        """Return whether it asks with messages and gets text, at a server that needs no weights or tokens of ours."""
        return self.engine == "openai" and not self.server.tokens


RESEEDS = "reseeds"
"""Fact of a call with a seed of its own: the seeds of the plan's rows derive from it too."""
COLUMNS = {"plan": tuple(name for name in PLAN.names if name != "reason"), "problems": PROMPT_COLUMNS}
"""The columns that a rollout reads, by role."""
ROLLOUT = Stage(
    "rollout",
    "Generate the completions of a plan.",
    version=2,
    makes="rollouts",
    settings=RolloutConfig,
    takes=(
        Role("plan", "plan: a file or an artifact"),
        PROBLEMS,
        POLICY,
        Role(
            "parents",
            "rollouts that rows of the plan continue or take up again; repeatable",
            "rollouts",
            many=True,
            default=None,
        ),
        Short("engine", "which engine samples", default="transformers"),
    ),
    check="gradus.tasks.preflight.abilities:check_engine",
    gate="gradus.tasks.stages.gates:rollout_breach",
    reads=lambda _: COLUMNS,
    worker="policy",
    other_worker=lambda settings: "engine" if settings.engine == "vllm" else "",
    run="gradus.tasks.stages.rollout.stage:run",
)


class RoleConfig(Config):
    """One model, how it samples and is trained; overrides of the stage `roles.NAME` change it by round."""

    policy: str = Field(default="", exclude_if=empty)
    """The model, named as `policy` is; empty for the policy that is trained, as of each round."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Its engine and prompt."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of rows that say nothing else."""
    update: UpdateConfig | None = Field(default=None, exclude_if=unset)
    """Training of the model, after the policy's update of each round, on the rows that it sampled in it and that a
    [score.USE] judged; none keeps it frozen. It begins as `policy`, or as the run's policy begins."""

    def learning(self, name: str) -> UpdateConfig | None:
        """Return the settings of its updates under its name; None if it is not trained."""
        return None if self.update is None else self.update.model_copy(update={"role": name})


class PlanningConfig(Config):
    """One call of a wave: the function, and the settings by which its plan is drawn and sampled."""

    wave: WaveConfig
    """The function."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of rows that say nothing else."""
    curate: CurateConfig = Field(default_factory=CurateConfig)
    """Filters, ranking and sampler of the problems that it draws."""
    max_age: int = Field(default=0, ge=0, le=MAX_ROUNDS, exclude_if=empty)
    """Age of the stored rollouts that it may take up, updates; filled in if it reads them."""
    roles: dict[str, SampleConfig] = Field(default_factory=dict, exclude_if=empty)
    """Sampling of rows of each role that say nothing else."""

    @property
    def tracked(self) -> Mapping[str, tuple[str, ...]]:
        """Key columns of each column of a tracker that the wave, or what draws for it, reads."""
        return self.curate.tracked

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems, plan and trackers."""
        curated = [chosen.needs for chosen in chosen_in(self.curate)]
        return round_columns(self.wave.needs, curated, tracked=self.tracked)


WAVE = Stage(
    "wave",
    "Plan further rollouts of a round from the finished ones.",
    version=1,
    makes="plan",
    settings=PlanningConfig,
    reads=lambda settings: settings.reads,
    verb=False,
    run="gradus.tasks.stages.wave:run",
)
