"""Settings of the stage ingest."""

from typing import Literal

from pydantic import Field

from gradus.tasks.config.base import Config


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
