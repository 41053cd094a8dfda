"""The stages ingest, curate, hint and difficulty, with their settings and the inputs that other stages have, too."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from gradus.components.chosen import (
    FilterConfig,
    HintStrategyConfig,
    RankingConfig,
    SamplerConfig,
    chosen_in,
    none_if_empty,
)
from gradus.components.settings import LIMIT, MAX_ROWS, MAX_TOKENS, Config, empty, optional
from gradus.components.stage import CHECKPOINTS, Role, Short, Stage
from gradus.data.errors import UsageError
from gradus.data.lake.schema import MAX_SAMPLES, MAX_TEMPERATURE
from gradus.data.lake.schema import PROBLEMS as PROBLEMS_TABLE
from gradus.data.sources.formats import FIELDS, Answers
from gradus.data.sources.tabular import refuse_fields
from gradus.data.worked import needs_answer
from gradus.models.templates import PromptConfig
from gradus.tasks.config.rounds import of_problem, tracked_columns

MAX_LEVEL = 1000
"""Levels of hints at most."""
PROBLEMS = Role("problems", "problems: a file, an artifact, bundled:train or bundled:heldout")
POLICY = Role(
    "policy", "policy: bundled, a folder, a checkpoint artifact, or id@revision", CHECKPOINTS, default="bundled"
)
MAPS = Short("columns", "rename a column, ours=theirs; repeatable", "--map", list[str], read="names")
PROMPT_COLUMNS = ("problem_id", "question", "messages")
"""The columns of problems that prompts come from."""


def counting(used: str) -> Role:
    """The policy that prompts are tokenised by, for a stage that counts tokens if its property `used` says so."""
    return Role("policy", "policy whose tokens of a prompt count", CHECKPOINTS, default=None, used=used)


def worked_columns(template: str) -> tuple[str, ...]:
    """Return the columns of problems that prompts and worked solutions come from."""
    return (*PROMPT_COLUMNS, "solution", *(("answer", "answer_given") if needs_answer(template) else ()))


class IngestConfig(Config):
    """Conversion of a source into a problems table."""

    format: Literal["auto", "gsm8k", "math", "hints", "plain"] = "auto"
    """Format of the rows: gsm8k (#### gold), math (boxed gold), hints (Scaf-GRPO tiers), plain (columns as named)."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Field mapping, ours = theirs; a key of an object is written reward_model.ground_truth."""
    split: str = "train"
    """Split of a Hugging Face dataset."""
    subset: str = ""
    """Configuration name of a Hugging Face dataset; empty for the default."""
    revision: str = ""
    """Pinned revision of a Hugging Face dataset; required for an id on the hub."""
    answers: Answers = optional("required")
    """Golds of plain rows: optional where no reward needs one; json takes lists and tables too, for rewards of such."""
    duplicates: Literal["drop", "keep"] = optional("drop")
    """A question that occurs again, in any case and spacing: drop counts it as refused, keep takes each row."""
    max_prompt_tokens: int = Field(default=0, ge=0, le=MAX_ROWS, exclude_if=empty)
    """Problems whose prompt, without a hint, has more tokens of the policy are left out and counted; 0 takes any."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """Prompt of a problem, as it is measured; in a recipe that of the rollouts."""
    limit: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Rows to read at most; 0 for all."""
    streaming: bool = False
    """Read a Hugging Face dataset without downloading it whole."""
    strict: bool = False
    """Stop at the first row that cannot be used."""
    generator: dict[str, int | float | str | bool | list[int]] = Field(default_factory=dict)
    """Configuration of a reasoning-gym family (min_terms, max_terms, size, seed ...)."""

    @field_validator("columns")
    @classmethod
    def _are_fields(cls, columns: dict[str, str]) -> dict[str, str]:
        try:
            refuse_fields(columns, FIELDS, "problems")
        except UsageError as error:
            raise ValueError(str(error)) from None
        return columns

    @field_validator("generator")
    @classmethod
    def _has_a_seed(cls, generator: dict[str, int | float | str | bool | list[int]]) -> object:
        if type(generator.get("seed", 0)) is not int:
            raise ValueError("seed is not a whole number")
        return generator


INGEST = Stage(
    "ingest",
    "Turn a source into a problems table.",
    version=4,
    makes="problems",
    settings=IngestConfig,
    takes=(
        Role("source", "a JSONL or Parquet file, a dataset id, or reasoning-gym:FAMILY", argument=True),
        MAPS,
        Short("strict", "stop at the first row that cannot be used", type=bool, default=False),
        counting("max_prompt_tokens"),
    ),
    check="gradus.tasks.preflight.checks:check_ingest",
    draws=False,
    other_worker=lambda settings: "policy" if settings.max_prompt_tokens else "",
    run="gradus.tasks.stages.ingest:run",
)


class SampleConfig(Config):
    """Sampling of completions."""

    n: int = Field(default=8, ge=1, le=MAX_SAMPLES)
    """Completions per group."""
    temperature: float = Field(default=1.0, ge=0.0, le=MAX_TEMPERATURE)
    """Sampling temperature; 0 is greedy."""
    max_tokens: int = Field(default=96, ge=1, le=MAX_TOKENS)
    """Limit of completion tokens."""


class CurateConfig(Config):
    """Selection and order of the problems of a plan."""

    filters: tuple[FilterConfig, ...] = ()
    """Filters applied in order; a row is dropped by the first that refuses it."""
    rank: Annotated[RankingConfig | None, BeforeValidator(none_if_empty)] = None
    """Rank by this component, highest first, before `top`; none keeps the order of the problems."""
    top: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Problems kept after ranking, from the first; 0 for all."""
    sampler: SamplerConfig = Field(default_factory=SamplerConfig.usual)
    """Draw problems: all in order, uniform, or variance (in proportion to pass-rate variance)."""
    draw: int = Field(default=0, ge=0, le=MAX_ROWS)
    """Problems to draw; 0 takes all that are left."""
    sample: SampleConfig = Field(default_factory=SampleConfig)
    """Sampling of each planned problem."""
    hint_level: int = Field(default=0, ge=0, le=MAX_LEVEL, exclude_if=empty)
    """Level of the hint that planned problems are shown from the start; 0 for none. A problem without such a hint is
    sampled without it."""
    hinted_frac: float = optional(1.0, ge=0.0, le=1.0)
    """Share of the planned problems that are shown the hint of `hint_level`, drawn at random."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """Prompt of a problem, as the filter prompt_tokens counts it; in a recipe that of the rollouts."""
    tracked: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=empty)
    """Key columns of each column of a tracker that is read, by its name; in a recipe those of its `trackers`."""

    @property
    def counts_tokens(self) -> bool:
        """Return whether a component reads how many tokens of a policy the prompts have."""
        return any(each.reads("prompt_tokens") for each in chosen_in(self))

    @property
    def knows_evaluated(self) -> bool:
        """Return whether a component reads which problems share text with evaluated ones."""
        return any(each.reads("contaminated") for each in chosen_in(self))

    @property
    def shows_hints(self) -> bool:
        """Return whether planned problems are shown hints."""
        return self.hint_level > 0


class HintConfig(Config):
    """Construction of hints from worked solutions."""

    strategy: HintStrategyConfig = Field(default_factory=HintStrategyConfig.usual)
    """prefix: the first steps of the solution; tiers: hints that are in the source."""
    fractions: tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...] = Field(default=(0.25, 0.5, 0.75), min_length=1)
    """Share of the solution's steps shown at level 1, 2, 3 ..."""
    tracked: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=empty)
    """Key columns of each column of a tracker or measure that the strategy reads; in a recipe those of its own."""

    @property
    def reads_rounds(self) -> bool:
        """Return whether the strategy reads what rounds measure: difficulty, or columns of trackers and measures."""
        return any(of_problem(need) not in PROBLEMS_TABLE.names for need in self.strategy.needs or ())


class DifficultyConfig(Config):
    """Computation of a difficulty table from scores (added to the previous one where given)."""

    max_unjudged_frac: float = Field(default=0.1, ge=0.0, le=1.0, json_schema_extra=LIMIT)
    """Gate: a larger share of the rollouts counted without a verdict fails the stage; 1 accepts rewards alone."""


CURATE = Stage(
    "curate",
    "Choose and order problems, with a reason for each.",
    version=2,
    makes="plan",
    settings=CurateConfig,
    takes=(
        PROBLEMS,
        Role("difficulty", "difficulty: a file or an artifact", default=None),
        Role("hints", "hints: a file or an artifact, shown at --hint-level", default=None, used="shows_hints"),
        Short("filters", "NAME[:k=v,...]; repeatable", "--filter", list[str], read="filters"),
        Short("rank", "NAME[:k=v,...], such as historical_std or variance", default="", read="component"),
        Short("top", "keep the first N after ranking", type=int, default=0, least=0),
        Short("sampler", "NAME[:k=v,...]: all, uniform or variance", default="all", read="component"),
        Short("draw", "problems to draw; 0 takes all", type=int, default=0, least=0),
        Short("hint_level", "level of the hints that are shown; 0 for none", type=int, default=0, least=0),
        counting("counts_tokens"),
        Role(
            "evaluated",
            "evaluation problems that the filter decontaminated looks for: files or artifacts; repeatable",
            "problems",
            many=True,
            default=None,
            used="knows_evaluated",
        ),
    ),
    check="gradus.tasks.preflight.checks:check_curate",
    reads=lambda settings: tracked_columns(settings.tracked),
    other_worker=lambda settings: "policy" if settings.counts_tokens else "",
    run="gradus.tasks.stages.curate:run",
)
HINT = Stage(
    "hint",
    "Build hints from worked solutions.",
    version=1,
    makes="hints",
    settings=HintConfig,
    takes=(PROBLEMS,),
    reads=lambda settings: tracked_columns(settings.tracked),
    draws=False,
    run="gradus.tasks.stages.hint:run",
)
DIFFICULTY = Stage(
    "difficulty",
    "Count how often each problem was solved.",
    version=3,
    makes="difficulty",
    settings=DifficultyConfig,
    draws=False,
    verb=False,
    gate="gradus.tasks.stages.gates:verdict_breach",
    run="gradus.tasks.stages.difficulty:run",
)
