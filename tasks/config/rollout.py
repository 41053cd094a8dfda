"""The stage rollout: its declaration, its settings and those of its engines."""

from typing import Literal

from pydantic import Field, field_validator

from gradus.components.settings import INCIDENTAL, LIMIT, MAX_PROCESSES, MAX_ROWS, MAX_TRIES, Config, empty
from gradus.components.stage import Role, Short, Stage
from gradus.data.errors import shortened
from gradus.data.lake.schema import MAX_TOKENS
from gradus.tasks.config.addresses import is_address, is_place
from gradus.tasks.config.key_variables import VARIABLE
from gradus.tasks.config.prompts import PromptConfig, Stops
from gradus.tasks.config.roles import POLICY, PROBLEMS


class VllmConfig(Config):
    """How vLLM runs; see its own documentation of the arguments of the same name."""

    tensor_parallel_size: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Accelerators that one copy of the model is spread over."""
    data_parallel_size: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Copies of the model."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0.0, le=1.0, json_schema_extra=INCIDENTAL)
    """Share of an accelerator's memory for weights and cache."""
    max_num_seqs: int = Field(default=256, ge=1, le=MAX_ROWS, json_schema_extra=INCIDENTAL)
    """Rollouts generated together."""
    max_model_len: int = Field(default=0, ge=0, le=MAX_TOKENS)
    """Prompt and completion tokens at most; 0 for what the policy allows."""
    enforce_eager: bool = False
    """Leave out graph capture: starts sooner, runs slower."""
    cpu_cache_gib: int = Field(default=1, ge=1, le=100_000, json_schema_extra=INCIDENTAL)
    """On a CPU: memory for the cache, GiB."""
    sleep: bool = Field(default=False, json_schema_extra=INCIDENTAL)
    """Free the accelerator after every rollout stage, so that an update on the same one has room."""


class ServerConfig(Config):
    """Where an OpenAI-compatible server answers and how it is asked."""

    url: str = "http://127.0.0.1:8000/v1"
    """Address of its API."""
    model: str = ""
    """Name of the model there; empty takes the only one it has."""
    api_key_variable: str = Field(default="OPENAI_API_KEY", pattern=VARIABLE, json_schema_extra=INCIDENTAL)
    """Environment variable with the key, or with `user:password` after the word Basic; itself never stored.

    Its name ends in _API_KEY, or your own environment lists it in GRADUS_KEY_VARIABLES.
    """
    concurrency: int = Field(default=64, ge=1, le=MAX_PROCESSES, json_schema_extra=INCIDENTAL)
    """Requests under way at once."""
    timeout_s: float = Field(default=600.0, gt=0.0, json_schema_extra=INCIDENTAL)
    """Limit of one request, seconds."""
    retries: int = Field(default=5, ge=0, le=MAX_TRIES, json_schema_extra=INCIDENTAL)
    """Tries after a lost connection, a 429 or a 5xx, each after a longer wait."""
    tokens: bool = True
    """Send token ids and ask for those sampled with their log-probs, as vLLM and SGLang can; otherwise text."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if not is_address(url):
            raise ValueError("it is not an address; write it as http://127.0.0.1:8000/v1")  # which may hold a password
        return url


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
    """How often a worker that died is replaced, in one attempt of the stage; only the shard it had is asked again."""
    start_s: float = Field(default=600.0, gt=0.0)
    """Limit until a worker has its place in the cluster and its engine, seconds."""

    @field_validator("address")
    @classmethod
    def _is_a_cluster(cls, address: str) -> str:
        if address not in ("", "auto") and not is_place(address):
            raise ValueError(f"{shortened(address)!r} is neither auto nor HOST:PORT; write it as node1:6379")
        return address


class RolloutConfig(Config):
    """How a plan becomes rollouts."""

    engine: Literal["transformers", "vllm", "openai"] = "transformers"
    """Which engine samples."""
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    """Settings of the engine vllm."""
    server: ServerConfig = Field(default_factory=ServerConfig)
    """Settings of the engine openai."""
    ray: RayConfig = Field(default_factory=RayConfig, json_schema_extra=INCIDENTAL)
    """Settings of several workers: where the same samples are made, and by how many."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the sampler; auto is what the checkpoint was saved in."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Where the engine transformers computes; auto takes the GPU where PyTorch sees one, else the CPU."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus mass sampled from."""
    top_k: int = Field(default=0, ge=0, le=MAX_TOKENS)
    """Most probable tokens sampled from; 0 for all."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """How a problem becomes a prompt."""
    stop: Stops = Field(default=(), exclude_if=empty)
    """A completion ends with the first of these texts that it contains, beside the policy's own end."""
    shard_rows: int = Field(default=512, ge=1, le=MAX_ROWS)
    """Rollouts per shard, in whole groups where they fit; a crash loses at most one open shard."""
    batch_rows: int = Field(default=512, ge=1, le=MAX_ROWS)
    """Rollouts generated together."""
    flush_s: float = Field(default=10.0, ge=0.0, json_schema_extra=INCIDENTAL)
    """Seconds between two saves of the finished rows of an open shard, by engines that cannot sample the same again."""
    retries: int = Field(default=2, ge=0, le=MAX_TRIES, json_schema_extra=INCIDENTAL)
    """How often a request that failed is asked again."""
    max_failed_frac: float = Field(default=0.01, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """A larger share of requests that failed for good fails the stage; what was sampled is kept."""
    max_truncated_frac: float = Field(default=1.0, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of completions cut off by max_tokens fails the stage."""


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
        Short("engine", "which engine samples", default="transformers"),
    ),
    check="gradus.tasks.preflight.stages:check_rollout",
    worker="policy",
    other_worker=lambda settings: "engine" if settings.engine == "vllm" else "",
    run="gradus.tasks.stages.rollout.stage:run",
)
