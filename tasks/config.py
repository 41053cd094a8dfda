"""The settings of every stage: frozen, unknown keys refused, a line of doc under each field.

What a stage's result depends on goes into the stage's identity; other fields are marked INCIDENTAL or LIMIT.
Left out on purpose: where things are stored and how processes are supervised (see tasks.settings).
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tasks.base_config import INCIDENTAL, LIMIT, Config
from tasks.prompt_config import PromptConfig, Stops, empty


def _unset(value: object) -> bool:
    """Left out of what is written: settings that don't use an optional rule have the identity they had without it."""
    return value is None or value is False


class IngestConfig(Config):
    """How a source becomes a problems table."""

    source: str = ""
    """A file, a Hugging Face dataset id or folder, or reasoning-gym:FAMILY."""
    source_sha256: str = ""
    """Digest of the file or folder, filled in when the stage runs, so that changed content is a changed identity."""
    format: Literal["auto", "gsm8k", "math", "hints", "plain"] = "auto"
    """How rows are read: gsm8k (#### gold), math (boxed gold), hints (Scaf-GRPO tiers), plain (columns as named)."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Field mapping, ours = theirs."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    subset: str = ""
    """Configuration name of a Hugging Face dataset; empty for the default."""
    revision: str = ""
    """Pinned revision of a Hugging Face dataset; required for an id on the hub."""
    limit: int = Field(default=0, ge=0)
    """Rows to read at most; 0 for all."""
    streaming: bool = False
    """Read a Hugging Face dataset without downloading it whole."""
    strict: bool = False
    """Stop at the first row that cannot be used."""
    generator: dict[str, int | float | str | bool | list[int]] = Field(default_factory=dict)
    """Configuration of a reasoning-gym family (min_terms, max_terms, size, seed ...)."""


class FilterConfig(Config):
    """One filter by name with its settings."""

    name: str
    """Registered filter: pass_rate, zero_variance, group_variance, length."""
    settings: dict[str, float | int | str | bool] = Field(default_factory=dict)
    """Arguments of the filter."""


class SampleConfig(Config):
    """How completions are sampled."""

    n: int = Field(default=8, ge=1)
    """Completions per group."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""
    max_tokens: int = Field(default=96, ge=1)
    """Limit of completion tokens."""


class CurateConfig(Config):
    """Which problems, in which order, into a plan."""

    filters: tuple[FilterConfig, ...] = ()
    """Filters applied in order; a row is dropped by the first that refuses it."""
    rank: Literal["", "historical_std", "variance", "pass_rate", "reward_mean", "reward_variance"] = ""
    """Rank by this column, highest first, before `top`."""
    top: int = Field(default=0, ge=0)
    """Keep the first so many after ranking; 0 keeps all."""
    sampler: Literal["all", "uniform", "variance"] = "all"
    """Draw problems: all in order, uniformly, or in proportion to pass-rate variance."""
    draw: int = Field(default=0, ge=0)
    """Problems to draw; 0 takes all that are left."""
    explore_frac: float = Field(default=0.25, ge=0.0, le=1.0)
    """Share of a variance-weighted draw given to problems never measured or of zero variance."""
    sample: SampleConfig = SampleConfig()
    """How each planned problem is sampled."""
    hint_level: int = Field(default=0, ge=0)
    """Hint level shown with every planned problem that has such a hint (static hints); 0 plans bare problems."""
    round: int = 0
    """Round of the run; part of every group id."""


class EscalateConfig(Config):
    """A plan for the groups whose every rollout failed, one hint level up (GHPO, arXiv 2507.10628)."""

    level: int = Field(ge=1)
    """Hint level to show."""
    sample: SampleConfig = SampleConfig()
    """How each group is sampled again."""


class HintConfig(Config):
    """How hints are built from worked solutions."""

    strategy: Literal["prefix", "tiers"] = "prefix"
    """prefix: the first steps of the solution; tiers: hints that the source gives."""
    fractions: tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...] = (0.25, 0.5, 0.75)
    """Share of the solution's steps shown at level 1, 2, 3 ..."""


class VllmConfig(Config):
    """How vLLM runs; see its own documentation of the arguments of the same name."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """Accelerators that one copy of the model is spread over."""
    data_parallel_size: int = Field(default=1, ge=1)
    """Copies of the model."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0.0, le=1.0, json_schema_extra=INCIDENTAL)
    """Share of an accelerator's memory for weights and cache."""
    max_num_seqs: int = Field(default=256, ge=1, json_schema_extra=INCIDENTAL)
    """Rollouts generated together."""
    max_model_len: int = Field(default=0, ge=0)
    """Prompt and completion tokens at most; 0 for what the policy allows."""
    enforce_eager: bool = False
    """Leave out graph capture: starts sooner, runs slower."""
    cpu_cache_gib: int = Field(default=1, ge=1, json_schema_extra=INCIDENTAL)
    """On a CPU: memory for the cache, GiB."""
    sleep: bool = Field(default=False, json_schema_extra=INCIDENTAL)
    """Free the accelerator after every rollout stage, so that an update on the same one has room."""


class ServerConfig(Config):
    """Where an OpenAI-compatible server answers and how it is asked."""

    url: str = "http://127.0.0.1:8000/v1"
    """Address of its API."""
    model: str = ""
    """Name of the model there; empty takes the only one it has."""
    api_key_variable: str = Field(
        default="OPENAI_API_KEY", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", json_schema_extra=INCIDENTAL
    )
    """Environment variable with the key, or with `user:password` after the word Basic; itself never stored."""
    concurrency: int = Field(default=64, ge=1, json_schema_extra=INCIDENTAL)
    """Requests under way at once."""
    timeout_s: float = Field(default=600.0, gt=0.0, json_schema_extra=INCIDENTAL)
    """Limit of one request, seconds."""
    retries: int = Field(default=5, ge=0, json_schema_extra=INCIDENTAL)
    """Tries after a lost connection, a 429 or a 5xx, each after a longer wait."""
    tokens: bool = True
    """Send token ids and ask for those sampled with their log-probs, as vLLM and SGLang can; otherwise text."""


class RayConfig(Config):
    """Several workers for one stage, by Ray."""

    workers: int = Field(default=0, ge=0)
    """Processes that sample at once, each with an engine of its own; 0: the stage samples itself, without Ray."""
    address: str = Field(default="", pattern=r"^(|auto|[^/\s]+:[0-9]+)$")
    """A cluster to join from one of its machines, auto or HOST:PORT; empty starts a Ray of our own on this machine.

    A cluster's machines need the same gradus installed, and GRADUS_HOME at the same path on a shared file system.
    """
    cpus: float = Field(default=1.0, gt=0.0)
    """CPUs that Ray sets aside for a worker; how many threads it computes with is OMP_NUM_THREADS, as without Ray."""
    gpus: float = Field(default=0.0, ge=0.0)
    """GPUs that Ray sets aside for a worker; 0 shows it none."""
    max_restarts: int = Field(default=2, ge=0)
    """How often a worker that died is replaced, in one attempt of the stage; only the shard it had is asked again."""
    start_s: float = Field(default=600.0, gt=0.0)
    """Limit until a worker has its place in the cluster and its engine, seconds."""


class RolloutConfig(Config):
    """How a plan becomes rollouts."""

    engine: Literal["transformers", "vllm", "openai"] = "transformers"
    """Which engine samples."""
    vllm: VllmConfig = VllmConfig()
    """Settings of the engine vllm."""
    server: ServerConfig = ServerConfig()
    """Settings of the engine openai."""
    ray: RayConfig = Field(default=RayConfig(), json_schema_extra=INCIDENTAL)
    """Settings of several workers: where the same samples are made, and by how many."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the sampler; auto is what the checkpoint was saved in."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Where the engine transformers computes; auto takes the GPU where PyTorch sees one, else the CPU."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus mass sampled from."""
    top_k: int = Field(default=0, ge=0)
    """Most probable tokens sampled from; 0 for all."""
    prompt: PromptConfig = Field(default=PromptConfig(), exclude_if=empty)
    """How a problem becomes a prompt."""
    stop: Stops = Field(default=(), exclude_if=empty)
    """A completion ends with the first of these texts that it contains, beside the policy's own end."""
    shard_rows: int = Field(default=512, ge=1)
    """Rollouts per shard, in whole groups where they fit; a crash loses at most one open shard."""
    batch_rows: int = Field(default=512, ge=1)
    """Rollouts generated together."""
    flush_s: float = Field(default=10.0, ge=0.0, json_schema_extra=INCIDENTAL)
    """Engines that cannot sample the same again keep finished rows of the open shard every so many seconds."""
    retries: int = Field(default=2, ge=0, json_schema_extra=INCIDENTAL)
    """How often a request that failed is asked again."""
    max_failed_frac: float = Field(default=0.01, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """A larger share of requests that failed for good fails the stage; what was sampled is kept."""
    max_truncated_frac: float = Field(default=1.0, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of completions cut off by max_tokens fails the stage."""
    round: int = 0
    """Round of the run, written in each row."""


class RewardConfig(Config):
    """One reward and its weight."""

    name: str
    """math, numeric, exact, format, or path/to/file.py:function."""
    weight: float = 1.0
    """Weight in the sum."""
    settings: dict[str, str | float | int | bool] = Field(default_factory=dict)
    """Arguments of the reward (format: pattern ...)."""
    decides: bool = Field(default=False, exclude_if=_unset)
    """Whether this reward decides the column `correct`, where several could."""
    source_sha256: str = ""
    """Digest of the user's file, filled in when the stage runs, so that a changed reward is a changed identity."""
    modules: dict[str, str] = Field(default_factory=dict, exclude_if=empty)
    """Digest of each of the user's own modules that the file leads to, by name; filled in likewise."""
    libraries: dict[str, str] = Field(default_factory=dict, exclude_if=empty)
    """Version of each installed distribution that those import, by name; filled in likewise."""

    def identified(self) -> dict[str, Any]:
        """The settings without the folder of a user's file: what is in it counts, not where it lies."""
        return {**super().identified(), "name": self.name.rpartition("/")[2]}


class ScoreConfig(Config):
    """How rollouts are judged."""

    rewards: tuple[RewardConfig, ...] = (RewardConfig(name="math"),)
    """The rewards; the one that `decides`, else the first that judges correctness, decides the column `correct`."""
    correct_at: float | None = Field(default=None, allow_inf_nan=False, exclude_if=_unset)
    """Threshold: a row without a verdict of its own is correct if the value of the deciding reward is at least this.

    If no reward decides, the weighted sum is compared. Without a threshold only the values 1 and 0 of a deciding reward
    are verdicts.
    """
    item_timeout_s: float = Field(default=5.0, gt=0.0)
    """Wall limit for one completion."""
    max_chars: int = Field(default=50_000, ge=1)
    """Longer completions are judged by their last so many characters."""
    max_error_frac: float = Field(default=0.05, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of errors and time-outs fails the stage after the good rows are kept."""
    shard_rows: int = Field(default=4096, ge=1)
    """Rows per shard."""

    @model_validator(mode="after")
    def _at_most_one_decides(self) -> "ScoreConfig":
        if sum(reward.decides for reward in self.rewards) > 1:
            raise ValueError("more than one reward has decides = true")
        return self


class DifficultyConfig(Config):
    """How scores become a difficulty table (added to the previous one where given)."""

    round: int = 0
    """Round of these measurements."""
    unhinted_only: bool = True
    """Count only rollouts without a hint: a hinted pass says nothing of the bare problem."""
    max_unjudged_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of the rollouts counted without a verdict fails the stage; 1 accepts rewards alone."""


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class UpdateConfig(Config):
    """One GRPO update (DeepSeekMath, arXiv 2402.03300) with its published options."""

    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """grpo divides by the group's std; dr_grpo (arXiv 2503.20783) does not; rloo leaves the row itself out."""
    std_eps: float = Field(default=1e-4, ge=0.0)
    """Added to the std (TRL 1e-4, verl 1e-6)."""
    loss: Literal["clip"] = "clip"
    """Clipped surrogate on token ratios."""
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """How token losses become one number (DAPO, GRPO, Dr. GRPO)."""
    length_tokens: int = Field(default=0, ge=0)
    """Completion limit that fixed_length divides by: the max_tokens that the rollouts were sampled with."""
    clip_low: float = Field(default=0.2, ge=0.0)
    """Ratio floor is 1 - clip_low."""
    clip_high: float = Field(default=0.28, ge=0.0)
    """Ratio ceiling is 1 + clip_high (DAPO's clip-higher, arXiv 2503.14476)."""
    kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the k3 KL to the reference policy; 0 loads no reference."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    correction: Literal["none", "token_truncated", "token_masked", "sequence_truncated", "sequence_masked"] = "none"
    """Weight of what another engine or an older policy sampled: p_trainer / p_sampler, cut off or masked at the cap."""
    correction_cap: float = Field(default=2.0, ge=1.0)
    """Largest weight (truncated), or largest and smallest, 1 / cap, that still counts (masked)."""
    truncation: Literal["refused", "masked"] = "refused"
    """Rows sampled with top_p or top_k: no correction is taken of them (refused), or the trainer's side of correction,
    mismatch and gates is truncated likewise and a correction gives weight 0 to what that leaves out (masked)."""
    max_age: int = Field(default=0, ge=0, json_schema_extra=LIMIT)
    """Gate: rollouts may come from so many updates before the policy; 0 takes only the policy's own."""
    lr: float = Field(default=5e-5, gt=0.0)
    """AdamW learning rate after warm-up."""
    warmup_steps: int = Field(default=15, ge=0)
    """Optimiser steps over which the learning rate rises linearly, counted over the whole run."""
    decay_steps: int = Field(default=0, ge=0)
    """Optimiser step of the run at which a cosine has brought the learning rate to a tenth; 0 keeps it constant."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """AdamW weight decay."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW betas."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this global norm."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the rollouts."""
    minibatch_groups: int = Field(default=0, ge=0)
    """Groups per optimiser step; 0 takes all in one."""
    micro_tokens: int = Field(default=16_384, ge=1)
    """Padded tokens in memory at once; the result does not depend on it beyond rounding."""
    max_logp_diff: float = Field(default=1.0, gt=0.0, json_schema_extra=LIMIT)
    """Gate: mean absolute difference of sampler and trainer log-probs per token, nats."""
    max_outside_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate, where truncation is masked: share of tokens that the trainer's own truncation leaves out."""
    max_zero_std_frac: float = Field(default=1.0, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: share of groups without variance."""
    save_every_steps: int = Field(default=0, ge=0)
    """Keep resumable state inside a long update every so many optimiser steps; 0 never."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Where the model computes; auto takes the GPU where PyTorch sees one, else the CPU."""

    @model_validator(mode="after")
    def _fixed_length_has_its_length(self) -> "UpdateConfig":
        if self.aggregation == "fixed_length" and not self.length_tokens:
            raise ValueError("aggregation fixed_length needs length_tokens, the max_tokens of the rollouts")
        return self


class WarmstartConfig(Config):
    """Supervised fine-tuning on worked solutions, from random weights or a given policy."""

    steps: int = Field(default=800, ge=1)
    """Optimiser steps."""
    decay_steps: int = Field(default=1200, ge=0)
    """Step at which the learning rate has fallen to a tenth; 0 for `steps`."""
    batch_rows: int = Field(default=96, ge=1)
    """Problems per step."""
    lr: float = Field(default=2e-3, gt=0.0)
    """AdamW learning rate after warm-up, then cosine to a tenth."""
    warmup_steps: int = Field(default=100, ge=0)
    """Optimiser steps of linear warm-up."""
    width: int = Field(default=128, ge=8)
    """Hidden size of a new policy."""
    layers: int = Field(default=4, ge=1)
    """Layers of a new policy."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of a new policy."""
    prompt: PromptConfig = Field(default=PromptConfig(), exclude_if=empty)
    """How a problem becomes a prompt: as in the rollouts that follow."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Where the model computes; auto takes the GPU where PyTorch sees one, else the CPU."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "WarmstartConfig":
        if self.width % (2 * self.heads):
            raise ValueError(f"width = {self.width} cannot be divided into {self.heads} heads of an even size")
        return self


class EvaluateConfig(Config):
    """What is computed from the scored rollouts of one policy on one problem set."""

    suite: str = "heldout"
    """Name of the problem set."""
    ks: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 8), min_length=1)
    """The k of pass@k."""
    bootstrap: int = Field(default=2000, ge=1)
    """Bootstrap resamples of problems."""
    confidence: float = Field(default=0.95, gt=0.0, lt=1.0)
    """Coverage of the intervals."""
    max_unjudged_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of rollouts without a verdict fails the stage; 1 accepts an evaluation of rewards alone."""
