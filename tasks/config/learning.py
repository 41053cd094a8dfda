"""Settings of the stages that train, update and warmstart, and of `given`, whose rows an update learns from."""

from functools import partial
from operator import eq
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gradus.components import Need
from gradus.components.addresses import is_place
from gradus.components.chosen import (
    AdvantageConfig,
    AggregationConfig,
    ImportanceConfig,
    LossConfig,
    TokenWeightsConfig,
    none_if_empty,
)
from gradus.components.settings import (
    INCIDENTAL,
    LIMIT,
    MAX_PROCESSES,
    MAX_ROUNDS,
    MAX_ROWS,
    MAX_TOKENS,
    Config,
    empty,
    unset,
)
from gradus.data.lake.schema import OWN
from gradus.data.worked import AS_IT_STANDS
from gradus.tasks.config.prompts import PromptConfig

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]
TEACHER_TOP_K = 32


def refuse_without_solution(template: str) -> str:
    """Return the template of a worked solution; ValueError if it leaves the solution out."""
    if AS_IT_STANDS not in template:
        raise ValueError(f"the template has no {AS_IT_STANDS}, so every solution would be the same")
    return template


class OriginLossConfig(Config):
    """The loss of rows of one origin, in place of the update's."""

    origin: str = Field(min_length=1)
    """The rows' `origin`: expert for worked solutions, or whatever their table has; own is the policy itself."""
    loss: LossConfig
    """sft, supervised fine-tuning; luffy, the shaped loss of off-policy traces (arXiv 2504.14945); or any other."""


class CriticConfig(Config):
    """How a critic learns, if the advantage needs one (gae). It begins as a copy of the policy with a value head."""

    lr: float = Field(default=1e-5, gt=0.0)
    """AdamW learning rate, constant."""
    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """Discount of the targets, a token."""
    lam: float = Field(default=1.0, ge=0.0, le=1.0)
    """TD(lambda) of the targets: 1 learns the reward, 0 the next value."""
    clip: float = Field(default=0.5, gt=0.0)
    """Values move at most this far from those before the update."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this global norm."""


class LaunchConfig(Config):
    """The processes of an update: { processes = 8 }; with several hosts also { hosts = 2, rendezvous = "node1:29400" }.

    The model is divided among them by FSDP2; what does not work with several is refused before anything starts.
    """

    processes: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Processes on each host, one a GPU; torchrun starts them."""
    hosts: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Hosts, which share the folder GRADUS_HOME; on each but the first one `gradus join RUN` has to run."""
    rendezvous: str = ""
    """HOST:PORT of the first host where the processes of several hosts meet, on a network that only they can reach."""

    @property
    def num_ranks(self) -> int:
        """Processes on all hosts."""
        return self.processes * self.hosts

    @model_validator(mode="after")
    def _meeting_place(self) -> "LaunchConfig":
        if self.hosts > 1 and not self.rendezvous:
            raise ValueError('several hosts need an address to meet at: set rendezvous, such as "node1:29400"')
        if self.rendezvous and not is_place(self.rendezvous):
            raise ValueError('rendezvous is not HOST:PORT; write it as "node1:29400"')
        return self


class OptimizerConfig(Config):
    """An optimiser by name: "SGD", or { name = "SGD", settings = { momentum = 0.9 } }."""

    name: str = "adamw"
    """adamw; adamw_8bit, whose state is 8-bit (arXiv 2110.02861), by bitsandbytes; or a class of torch.optim, such as
    SGD, Adafactor or RAdam."""
    settings: dict[str, bool | int | float | str | list[float | None]] = Field(default={}, exclude_if=empty)
    """Keyword arguments of its constructor, other than lr, betas and weight_decay."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: object) -> object:
        return {"name": given} if isinstance(given, str) else given


class LoraConfig(Config):
    """A LoRA adapter that is trained in place of the policy's own weights (arXiv 2106.09685).

    It has no dropout, since the log-probs of an update must be those of the sampler. Ten times the learning rate of a
    full update and all linear layers are what learns as well as it does (LoRA Without Regret, 2025).
    """

    rank: int = Field(default=16, ge=1, le=100_000)
    """Columns of B and rows of A; policy gradients need few, 1 has been enough."""
    alpha: int = Field(default=32, ge=1, le=1_000_000)
    """B A is multiplied with alpha / rank."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """The layers that are adapted: all linear ones but the output layer, or those of these names, such as q_proj."""
    quantize: Literal["none", "nf4"] = Field(default="none", exclude_if=partial(eq, "none"))
    """nf4 holds the base in 4 bits while the adapter is trained (QLoRA, arXiv 2305.14314), by bitsandbytes on one GPU.
    The sampler has the base's own weights, so a correction of importance weights is advisable."""

    @model_validator(mode="after")
    def _some_targets(self) -> "LoraConfig":
        if not self.targets:
            raise ValueError("targets is empty: name layers, or leave it out for all linear ones")
        return self


class UpdateConfig(Config):
    """One GRPO update (DeepSeekMath, arXiv 2402.03300) with its published options."""

    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig.usual)
    """grpo divides by the group's std; dr_grpo (arXiv 2503.20783) does not; rloo leaves the row itself out; disco (with
    the loss reinforce and the aggregation sequence_mean) is made anew for every step."""
    loss: LossConfig = Field(default_factory=LossConfig.usual)
    """Policy loss of a token: clip, the clipped surrogate on token ratios; reinforce, without ratio and clip."""
    aggregation: AggregationConfig = Field(default_factory=AggregationConfig.usual)
    """How token losses become one number: token_mean (DAPO), sequence_mean (GRPO), fixed_length (Dr. GRPO)."""
    kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the k3 KL to the reference policy; 0 loads no reference."""
    reference: Literal["given", "ema"] = Field(default="given", exclude_if=partial(eq, "given"))
    """The reference of the KL and of components: a policy that is given, or the moving average of the policy's own
    weights as the update begins (ema; the anchor of WARP, arXiv 2406.16768)."""
    ema_decay: Beta = Field(default=0.0, exclude_if=empty)
    """Decay of a float32 moving average of the weights, moved at every optimiser step; 0 keeps none. It is a policy of
    its own in the checkpoint's folder `ema`."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    lora: LoraConfig | None = Field(default=None, exclude_if=unset)
    """Train a LoRA adapter instead of all weights: { rank = 16, alpha = 32, targets = "all-linear" }; {} takes these.
    The checkpoints are adapters beside the policy that the first of them began from."""
    correction: Annotated[ImportanceConfig | None, BeforeValidator(none_if_empty)] = None
    """Importance weights of what another engine or an older policy sampled: p_trainer / p_sampler of a token or a
    sequence, truncated or masked at a cap; none weighs every token alike."""
    weights: tuple[TokenWeightsConfig, ...] = Field(default=(), exclude_if=empty)
    """Weights of tokens made from all tokens of a step: top_entropy (arXiv 2506.01939) trains the uncertain ones."""
    origin_losses: tuple[OriginLossConfig, ...] = Field(default=(), exclude_if=empty)
    """Losses of rows that another than the policy wrote, by origin; rows of other origins take `loss`."""
    critic: CriticConfig = Field(default_factory=CriticConfig, exclude_if=lambda critic: critic == CriticConfig())
    """The critic of an advantage that needs values: gae (arXiv 1506.02438)."""
    teacher_top_k: int = Field(default=TEACHER_TOP_K, ge=1, le=MAX_TOKENS, exclude_if=lambda k: k == TEACHER_TOP_K)
    """The teacher's most likely tokens at each place that a loss which needs a teacher (distil) compares."""
    count_zero_std_groups: bool = Field(default=True, exclude_if=bool)
    """Whether groups without variance in their rewards count in the denominator of the loss."""
    drop_replaced_groups: bool = Field(default=True, exclude_if=bool)
    """Whether a group of which every rollout failed is left out once its problem was sampled again with a hint, as in
    GHPO (arXiv 2507.10628); false updates on both groups."""
    max_kl: float | None = Field(default=None, gt=0.0, exclude_if=empty)
    """No further step is taken once KL(policy before the update || policy) of a step exceeds this, nats a token."""
    truncation: Literal["refused", "masked"] = "refused"
    """Rows sampled with top_p or top_k: no correction is taken of them (refused), or the trainer's side of correction,
    mismatch and gates is truncated likewise and a correction gives weight 0 to what that leaves out (masked)."""
    max_age: int = Field(default=0, ge=0, le=MAX_ROUNDS, json_schema_extra=LIMIT)
    """Gate: updates at most between the policy of a rollout and this one; 0 takes only rollouts of this policy."""
    optimizer: OptimizerConfig = Field(
        default_factory=OptimizerConfig, exclude_if=lambda given: given == OptimizerConfig()
    )
    """What steps the weights."""
    lr: float = Field(default=5e-5, gt=0.0)
    """Learning rate after warm-up."""
    warmup_steps: int = Field(default=15, ge=0, le=MAX_ROWS)
    """Optimiser steps over which the learning rate rises linearly, counted over the whole run."""
    decay_steps: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Optimiser step of the run at which a cosine has brought the learning rate to a tenth; 0 keeps it constant."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Weight decay."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Betas of the optimiser, if it has two."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this global norm."""
    epochs: int = Field(default=1, ge=1, le=10_000)
    """Passes over the rollouts."""
    minibatch_groups: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Groups per optimiser step; 0 takes all in one."""
    micro_tokens: int = Field(default=16_384, ge=1, le=MAX_ROWS)
    """Tokens that go through the model at once, a prompt once for its completions, padding included where rows are
    padded; the result does not depend on it beyond rounding."""
    activation_checkpointing: bool = Field(default=False, exclude_if=unset)
    """Keep the inputs of each layer alone and compute the layer again for its gradient: less memory, more time."""
    max_logp_diff: float = Field(default=1.0, gt=0.0, json_schema_extra=LIMIT)
    """Gate: mean absolute difference of sampler and trainer log-probs per token, nats."""
    max_outside_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate, where truncation is masked: share of tokens that the trainer's own truncation leaves out."""
    max_zero_std_frac: float = Field(default=1.0, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: share of groups without variance."""
    without_signal: Literal["refused", "skipped"] = Field(
        default="refused", exclude_if=partial(eq, "refused"), json_schema_extra=LIMIT
    )
    """Rewards without variance in all groups: refused fails the update, skipped takes no step and keeps the policy. A
    training skips, see max_skipped_updates."""
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", exclude_if=partial(eq, "float32"))
    """What the model computes in; bfloat16 keeps float32 master weights beside it, which the optimiser steps."""
    saved_dtype: Literal["policy", "float32", "bfloat16"] = Field(default="policy", exclude_if=partial(eq, "policy"))
    """What the new policy's weights are saved in, and so sampled from; policy takes that of the policy that is updated.
    If it is not float32 the master weights are saved beside them, and the next update continues from those."""
    deterministic: bool = Field(default=False, exclude_if=unset)
    """Take deterministic algorithms alone, so that a GPU, too, computes the same bits twice; an operation that has none
    ends the update."""
    profile: bool = Field(default=False, exclude_if=unset, json_schema_extra=INCIDENTAL)
    """Leave a trace of the first three optimiser steps, for chrome://tracing or Perfetto, in the run's folder
    `profiles` and in MLflow; an update that is reused leaves none."""
    save_every_steps: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Optimiser steps between two saves of resumable state inside a long update; 0 for none."""
    save_state: Literal["now", "behind", "never"] = Field(
        default="now", exclude_if=partial(eq, "now"), json_schema_extra=INCIDENTAL
    )
    """Whether what the next update continues from is written: before the stage ends, while the next stages compute, or
    not at all where it can be computed again. A training sets it, see save_state_every."""
    keep_logprobs: bool = Field(default=False, exclude_if=empty)
    """Whether the update's table has the trainer's log-probs of every token, too."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Where the model computes; auto takes the GPU where PyTorch sees one, else the CPU."""
    between_updates: Literal["device", "host", "disk"] = Field(
        default="device", exclude_if=partial(eq, "device"), json_schema_extra=INCIDENTAL
    )
    """Where weights and optimiser stay between two updates: on the device; in the host's memory, so that a sampler on
    the same GPU has all of it; or only on disk, which frees both, ends the processes of a launch and is slowest."""
    launch: LaunchConfig = Field(
        default_factory=LaunchConfig, exclude_if=lambda given: given == LaunchConfig(), json_schema_extra=INCIDENTAL
    )
    """On how many processes the update computes; the result does not depend on it beyond rounding."""

    @property
    def losses(self) -> tuple[LossConfig, ...]:
        """The loss, then those of other origins."""
        return (self.loss, *(each.loss for each in self.origin_losses))

    @property
    def needs(self) -> frozenset[Need]:
        """What the components of the objective read beside a micro-batch's log-probs."""
        return frozenset(
            need for part in (self.advantage, *self.losses, *self.weights) for need in part.component.needs
        )

    @property
    def needs_reference(self) -> bool:
        """Whether a term of the objective compares the policy with a reference."""
        return bool(self.kl_coef) or bool(self.needs & {"reference", "reference_mean_logp"})

    @property
    def needs_teacher(self) -> bool:
        """Whether a loss compares the policy with a teacher."""
        return "teacher" in self.needs

    @property
    def needs_critic(self) -> bool:
        """Whether an advantage reads a critic's values."""
        return "values" in self.needs

    @model_validator(mode="after")
    def _one_loss_an_origin(self) -> "UpdateConfig":
        origins = [each.origin for each in self.origin_losses]
        for origin in origins:
            if origin == OWN or origins.count(origin) > 1:
                why = "is the loss `update.loss`" if origin == OWN else "stands there twice"
                raise ValueError(f"origin_losses: the loss of origin {origin} {why}")
        return self

    @property
    def loads_reference(self) -> bool:
        """Whether that reference is another policy, which must be given."""
        return self.needs_reference and self.reference == "given"

    @model_validator(mode="after")
    def _fits_an_adapter(self) -> "UpdateConfig":
        if self.lora is not None and self.saved_dtype == "bfloat16":
            raise ValueError("saved_dtype: the matrices of an adapter are saved in float32, which costs little")
        if self.lora is not None and self.lora.quantize != "none" and self.between_updates == "host":
            raise ValueError("between_updates: weights in 4 bits stay on their GPU: take device, or disk")
        return self

    @model_validator(mode="after")
    def _average_to_refer_to(self) -> "UpdateConfig":
        if self.reference == "ema" and not self.ema_decay:
            raise ValueError("reference = ema needs a moving average: set ema_decay, such as 0.99")
        return self


class WarmstartConfig(Config):
    """Supervised fine-tuning on worked solutions, from random weights or a given policy."""

    steps: int = Field(default=800, ge=1, le=MAX_ROWS)
    """Optimiser steps."""
    decay_steps: int = Field(default=1200, ge=0, le=MAX_ROWS)
    """Step at which the learning rate has fallen to a tenth; 0 for `steps`."""
    batch_rows: int = Field(default=96, ge=1, le=MAX_ROWS)
    """Problems per step."""
    lr: float = Field(default=2e-3, gt=0.0)
    """AdamW learning rate after warm-up, then cosine to a tenth."""
    warmup_steps: int = Field(default=100, ge=0, le=MAX_ROWS)
    """Optimiser steps of linear warm-up."""
    width: int = Field(default=128, ge=8, le=100_000)
    """Hidden size of a new policy."""
    layers: int = Field(default=4, ge=1, le=10_000)
    """Layers of a new policy."""
    heads: int = Field(default=4, ge=1, le=10_000)
    """Attention heads of a new policy."""
    template: str = AS_IT_STANDS
    """What is made of a solution: {solution} is trained on as it stands; {answer} is the gold answer, which a template
    such as "{solution}\\n#### {answer}" appends."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """How a problem becomes a prompt: as in the rollouts that follow."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Where the model computes; auto takes the GPU where PyTorch sees one, else the CPU."""

    _places_the_solution = field_validator("template")(refuse_without_solution)

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "WarmstartConfig":
        if self.width % (2 * self.heads):
            raise ValueError(f"width = {self.width} cannot be divided into {self.heads} heads of an even size")
        return self


class GivenConfig(Config):
    """Worked solutions of the training problems, or rows of a file, that every update learns from, too."""

    origin: str = Field(default="expert", min_length=1)
    """Origin of the rows; update.origin_losses names the loss that they take."""
    rows: str = Field(default="", exclude_if=empty)
    """A JSONL or Parquet file of traces in place of the solutions, several a problem: problem (id or question), text,
    and source, which is kept. They are judged and trained on as they stand."""
    rows_sha256: str = Field(default="", exclude_if=empty)
    """Digest of that file, filled in when the stage runs, so that changed content is a changed identity."""
    template: str = AS_IT_STANDS
    """What is made of a solution: {solution} is trained on as it stands; {answer} is the gold answer, which a template
    such as "{solution}\\n#### {answer}" appends to right and wrong solutions alike."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """How a problem becomes a prompt; in a recipe that of the rollouts."""

    _places_the_solution = field_validator("template")(refuse_without_solution)

    @field_validator("origin")
    @classmethod
    def _is_not_the_policy(cls, origin: str) -> str:
        if origin == OWN:
            raise ValueError(f"{OWN!r} is the origin of what the policy itself writes")
        return origin

    @model_validator(mode="after")
    def _leaves_traces_as_they_are(self) -> "GivenConfig":
        if self.rows and self.template != AS_IT_STANDS:
            raise ValueError("template is for worked solutions: the rows of a file are trained on as they stand")
        return self
