"""The stage ingest: its declaration and its settings."""

from functools import partial
from operator import eq
from typing import Literal

from pydantic import Field, field_validator

from gradus.components.settings import MAX_ROWS, Config, empty
from gradus.components.stage import Role, Short, Stage
from gradus.data.errors import UsageError
from gradus.data.sources.formats import FIELDS, Answers
from gradus.data.sources.tabular import refuse_fields
from gradus.tasks.config.prompts import MAPS, PromptConfig, counting


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
    answers: Answers = Field(default="required", exclude_if=partial(eq, "required"))
    """Golds of plain rows: optional where no reward needs one; json takes lists and tables too, for rewards of such."""
    duplicates: Literal["drop", "keep"] = Field(default="drop", exclude_if=partial(eq, "drop"))
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
