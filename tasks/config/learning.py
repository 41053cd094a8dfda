"""The stages that train, update and warmstart, and `gradient`, whose step is not taken, with their settings."""

from functools import cached_property
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gradus.components.addresses import is_place
from gradus.components.chosen import (
    AdvantageConfig,
    AggregationConfig,
    Chosen,
    CorrectionConfig,
    LossConfig,
    ShapeConfig,
    WeightConfig,
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
    optional,
    unset,
)
from gradus.components.stage import CHECKPOINTS, Role, Stage
from gradus.data.lake.schema import OWN
from gradus.data.worked import AS_IT_STANDS
from gradus.models.templates import PromptConfig
from gradus.models.training.settings import CriticConfig, FinetuneConfig, LoraConfig, StepConfig
from gradus.tasks.config.curation import POLICY, PROBLEMS, worked_columns
from gradus.tasks.config.rounds import ShapingConfig, is_carried

TEACHER_TOP_K = 32
K3, ENTROPY = "k3", "entropy"


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


Value = str | bool | int | float
Predicate = dict[str, Value | tuple[Value, ...]]


class TermConfig(Config):
    """A term of the objective: a loss of some rows; omitted settings are those of the update.

    [[update.terms]]
    loss = "k3"
    coefficient = 0.05
    """

    loss: LossConfig
    """A loss, or a regulariser, which no weight multiplies: k3, entropy."""
    rows: Predicate = Field(default={}, exclude_if=empty)
    """Values of columns of the rollouts and scores that a row must have, { origin = "expert" }; of several one."""
    without: Predicate = Field(default={}, exclude_if=empty)
    """Values of columns that a row must not have."""
    coefficient: float = 1.0
    """The term is multiplied by it."""
    advantage: AdvantageConfig | None = Field(default=None, exclude_if=unset)
    """The advantage that its loss takes."""
    weights: tuple[WeightConfig, ...] | None = Field(default=None, exclude_if=unset)
    """Weights of its tokens."""
    aggregation: AggregationConfig | None = Field(default=None, exclude_if=unset)
    """Reduction of its token losses to one number."""
    over: Literal["term", "step"] = "term"
    """Tokens and rows that aggregation and weights count: those of the term, or of the whole step."""
    name: str = Field(default="", exclude_if=empty)
    """Prefix of the names of its metrics."""


class LaunchConfig(Config):
    """The processes of an update: { processes = 8 }; with several hosts also { hosts = 2, rendezvous = "node1:29400" }.

    The model is divided among them by FSDP2; what does not work with several is refused before anything starts.
    """

    processes: int = Field(default=1, ge=1, le=MAX_PROCESSES)
    """Processes on each host, one a GPU; the stage's worker starts them."""
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


class UpdateConfig(StepConfig):
    """One GRPO update (DeepSeekMath, arXiv 2402.03300) with its published options."""

    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig.usual)
    """grpo divides by the group's std; dr_grpo (arXiv 2503.20783) does not; rloo leaves the row itself out; disco (with
    the loss reinforce and the aggregation sequence_mean) is made anew for every step."""
    loss: LossConfig = Field(default_factory=LossConfig.usual)
    """Policy loss of a token: clip, the clipped surrogate on token ratios; reinforce, without ratio and clip."""
    aggregation: AggregationConfig = Field(default_factory=AggregationConfig.usual)
    """Reduction of token losses to one number: token_mean (DAPO), sequence_mean (GRPO), fixed_length (Dr. GRPO)."""
    kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the k3 KL to the reference policy; 0 loads no reference."""
    reference: Literal["given", "ema"] = optional("given")
    """The reference of the KL and of components: a policy that is given, or the moving average of the policy's own
    weights as the update begins (ema; the anchor of WARP, arXiv 2406.16768)."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    lora: LoraConfig | None = Field(default=None, exclude_if=unset)
    """Train a LoRA adapter instead of all weights: { rank = 16, alpha = 32, targets = "all-linear" }; {} takes these.
    The checkpoints are adapters beside the policy that the first of them began from."""
    correction: Annotated[CorrectionConfig | None, BeforeValidator(none_if_empty)] = None
    """Importance weights of what another engine or an older policy sampled: p_trainer / p_sampler of a token or a
    sequence, truncated or masked at a cap; none weighs every token alike."""
    weights: tuple[WeightConfig, ...] = Field(default=(), exclude_if=empty)
    """Weights of tokens made from all tokens of a step: top_entropy (arXiv 2506.01939) trains the uncertain ones."""
    origin_losses: tuple[OriginLossConfig, ...] = Field(default=(), exclude_if=empty)
    """Losses of rows that another than the policy wrote, by origin; rows of other origins take `loss`."""
    terms: tuple[TermConfig, ...] = Field(default=(), exclude_if=empty)
    """The terms of the objective, in place of `loss`, `origin_losses`, `kl_coef` and `entropy_coef`, which are short
    spellings of terms."""
    critic: CriticConfig = Field(default_factory=CriticConfig, exclude_if=lambda critic: critic == CriticConfig())
    """The critic of an advantage that needs values: gae (arXiv 1506.02438)."""
    teachers: dict[str, Predicate] = Field(default={}, exclude_if=empty)
    """Roles that teach rows of their own in place of the `teacher`, { math = { "problem.domain" = "algebra" } }: by
    name the values of columns of rollouts, scores, plans or problems that these rows have; the first that has a row
    teaches it."""
    teacher_top_k: int = optional(TEACHER_TOP_K, ge=1, le=MAX_TOKENS)
    """The teacher's most likely tokens at each place that a loss which needs a teacher (distil) compares."""
    shapes: tuple[ShapeConfig, ...] = Field(default=(), exclude_if=empty)
    """Functions that decide, in this order, what of the rows is learned from: reward, group, taken, weight, term. In a
    training they are the stage `shape`, whose table `batch` the update reads."""
    role: str = Field(default="", exclude_if=empty)
    """The role whose rows are learned from; empty for the policy. Filled in for a role of a recipe that is trained."""
    drop_replaced_groups: bool = optional(True)
    """Leave out a group of which every rollout failed once its problem was sampled again with a hint, as in GHPO (arXiv
    2507.10628); false updates on both groups."""
    max_age: int = Field(default=0, ge=0, le=MAX_ROUNDS, json_schema_extra=LIMIT)
    """Gate: updates at most between the policy of a rollout and this one; 0 takes only rollouts of this policy."""
    max_logp_diff: float = Field(default=1.0, gt=0.0, json_schema_extra=LIMIT)
    """Gate: mean absolute difference of sampler and trainer log-probs per token, nats."""
    max_zero_std_frac: float = Field(default=1.0, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: share of groups without variance."""
    dtype: Literal["float32", "bfloat16"] = optional("float32")
    """Number format of the computation; bfloat16 keeps float32 master weights beside it, which the optimiser steps."""
    saved_dtype: Literal["policy", "float32", "bfloat16"] = optional("policy")
    """Number format of the new policy's saved weights, and so of sampling; policy takes that of the policy updated. If
    it is not float32 the master weights are saved beside them, and the next update continues from those."""
    deterministic: bool = Field(default=False, exclude_if=unset)
    """Take deterministic algorithms alone, so that a GPU, too, computes the same bits twice; an operation that has none
    ends the update."""
    keep_logprobs: bool = Field(default=False, exclude_if=empty)
    """Write the trainer's log-probs of every token to the update's table, too."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Device on which the model computes; auto takes the GPU where PyTorch sees one, else the CPU."""
    between_updates: Literal["device", "host", "disk"] = optional("device", json_schema_extra=INCIDENTAL)
    """Place of weights and optimiser between two updates: on the device; in the host's memory, so that a sampler on the
    same GPU has all of it; or only on disk, which frees both, ends the processes of a launch and is slowest."""
    launch: LaunchConfig = Field(
        default_factory=LaunchConfig, exclude_if=lambda given: given == LaunchConfig(), json_schema_extra=INCIDENTAL
    )
    """On how many processes the update computes; the result does not depend on it beyond rounding."""

    @cached_property
    def objective(self) -> tuple[TermConfig, ...]:
        """The terms of the objective, with short spellings written out and omitted settings filled in."""
        origins = tuple(each.origin for each in self.origin_losses)
        short = (
            TermConfig(loss=self.loss, without={"origin": origins} if origins else {}, over="step"),
            *(
                TermConfig(loss=each.loss, rows={"origin": each.origin}, over="step", name=f"{each.origin}_")
                for each in self.origin_losses
            ),
            *(
                TermConfig(loss=LossConfig(name=name), coefficient=coefficient, over="step")
                for name, coefficient in ((K3, self.kl_coef), (ENTROPY, self.entropy_coef))
                if coefficient
            ),
        )
        filled = {"advantage": self.advantage, "weights": self.weights, "aggregation": self.aggregation}
        return tuple(
            each.model_copy(update={name: value for name, value in filled.items() if getattr(each, name) is None})
            for each in self.terms or short
        )

    @property
    def parts(self) -> tuple[Chosen, ...]:
        """Every component of the objective, the correction too."""
        found = [
            part
            for each in self.objective
            for part in (each.advantage, each.loss, each.aggregation, *(each.weights or ()))
            if part is not None
        ]
        return (*found, *([self.correction] if self.correction is not None else []))

    @property
    def needs(self) -> frozenset[str]:
        """The columns that its components declare, and those of a row's problem or plan that decide on its teacher."""
        routed = (name for rows in self.teachers.values() for name in rows if is_carried(name))
        return frozenset((*(name for part in self.parts for name in part.component.needs or ()), *routed))

    @property
    def shaping(self) -> ShapingConfig:
        """The settings of the stage `shape`: what this update decides in passing without a batch."""
        carried = tuple(sorted(name for name in self.needs if is_carried(name)))
        return ShapingConfig(
            shapes=self.shapes, drop_replaced_groups=self.drop_replaced_groups, carried=carried, role=self.role
        )

    @property
    def reads_batch(self) -> bool:
        """Return whether a training makes it a batch: there are shapes, or columns beside those of rows."""
        return bool(self.shapes or self.shaping.carried)

    @property
    def with_batch(self) -> "UpdateConfig":
        """Return the settings of the update of a batch, without those that only decide the batch."""
        return self.model_copy(update={"shapes": (), "drop_replaced_groups": True}) if self.reads_batch else self

    @property
    def needs_reference(self) -> bool:
        """Return whether a term of the objective compares the policy with a reference."""
        return any(name.startswith("reference.") for name in self.needs)

    @property
    def loads_reference(self) -> bool:
        """Return whether that reference is another policy, which must be given."""
        return self.needs_reference and self.reference == "given"

    @property
    def needs_teacher(self) -> bool:
        """Return whether a loss compares the policy with a teacher."""
        return bool(self.needs & {"teacher.logp", "teacher.top", "now.top"})

    @property
    def needs_critic(self) -> bool:
        """Return whether an advantage reads a critic's values."""
        return "critic.value" in self.needs

    @model_validator(mode="after")
    def _one_objective(self) -> "UpdateConfig":
        origins = [each.origin for each in self.origin_losses]
        for origin in origins:
            if origin == OWN or origins.count(origin) > 1:
                why = "is the loss `update.loss`" if origin == OWN else "stands there twice"
                raise ValueError(f"origin_losses: the loss of origin {origin} {why}")
        short = {"loss": self.loss != LossConfig.usual(), "origin_losses": self.origin_losses}
        short |= {"kl_coef": self.kl_coef, "entropy_coef": self.entropy_coef}
        if self.terms and (odd := [name for name, is_set in short.items() if is_set]):
            raise ValueError(f"terms: the list is the whole objective; write {odd[0]} as one of its terms")
        return self

    @model_validator(mode="after")
    def _policies_fit(self) -> "UpdateConfig":
        if self.teachers and not self.needs_teacher:
            raise ValueError(f"teachers: no loss learns from {next(iter(self.teachers))}; take teacher_kl or distil")
        if self.lora is not None and self.saved_dtype == "bfloat16":
            raise ValueError("saved_dtype: the matrices of an adapter are saved in float32, which costs little")
        if self.lora is not None and self.lora.quantize != "none" and self.between_updates == "host":
            raise ValueError("between_updates: weights in 4 bits stay on their GPU: take device, or disk")
        if self.reference == "ema" and not self.ema_decay:
            raise ValueError("reference = ema needs a moving average: set ema_decay, such as 0.99")
        return self


class WarmstartConfig(FinetuneConfig):
    """Supervised fine-tuning on worked solutions, from random weights or a given policy."""

    width: int = Field(default=128, ge=8, le=100_000)
    """Hidden size of a new policy."""
    layers: int = Field(default=4, ge=1, le=10_000)
    """Layers of a new policy."""
    heads: int = Field(default=4, ge=1, le=10_000)
    """Attention heads of a new policy."""
    template: str = AS_IT_STANDS
    """Target made of a solution: {solution} is trained on as it stands; {answer} is the gold answer, which a template
    such as "{solution}\\n#### {answer}" appends."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """Prompt of a problem: as in the rollouts that follow."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Device on which the model computes; auto takes the GPU where PyTorch sees one, else the CPU."""

    _places_the_solution = field_validator("template")(refuse_without_solution)

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "WarmstartConfig":
        if self.width % (2 * self.heads):
            raise ValueError(f"width = {self.width} cannot be divided into {self.heads} heads of an even size")
        return self


def _reads(config: UpdateConfig) -> dict[str, tuple[str, ...]]:
    """The columns of scores that an update reads."""
    return {"scores": tuple(dict.fromkeys((*SCORE_COLUMNS, *config.shaping.reads["scores"])))}


SCORE_COLUMNS = ("rollout_id", "reward", "correct")
"""The columns of scores that every update reads."""
UPDATE = Stage(
    "update",
    "Update a policy from scored rollouts.",
    version=3,
    makes=CHECKPOINTS,
    settings=UpdateConfig,
    takes=(
        Role("rollouts", "rollouts; repeatable", many=True),
        Role("scores", "their scores; repeatable", many=True),
        Role("batch", "batch of rows to learn from, made by the stage shape", default=None),
        POLICY,
        Role("reference", "reference policy for the KL term", CHECKPOINTS, default=None, used="loads_reference"),
        Role("teacher", "policy that a loss distils from", CHECKPOINTS, default=None, used="needs_teacher"),
        Role(
            "teachers",
            "those of `teachers`, in that order; repeatable",
            CHECKPOINTS,
            many=True,
            default=None,
            used="teachers",
        ),
    ),
    check="gradus.tasks.preflight.abilities:check_update",
    gate="gradus.tasks.stages.gates:update_breach",
    reads=_reads,
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
    run="gradus.tasks.stages.update.warmstart:run",
)


class GradientConfig(UpdateConfig):
    """An update whose gradient is computed, and whose step is taken back."""

    num_coordinates: int = Field(default=2**20, ge=2, le=2**28)
    """Numbers that are kept of a gradient, for its angle to others: all of a policy with no more weights, else sums."""
    max_held_out: int = Field(default=512, ge=1, le=MAX_ROWS)
    """Held-out rollouts whose log-probs are compared before and after a step, at most; groups are taken whole."""


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
    reads=lambda settings: {**_reads(settings), "held_scores": SCORE_COLUMNS},
    worker="policy",
    verb=False,
    run="gradus.tasks.stages.update.gradient:run",
)
