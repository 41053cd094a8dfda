"""The manifest: what an artefact consists of, written last and therefore the proof that it is whole.

It holds nothing that differs between two undisturbed runs of the same identity (no clock, host or attempt number),
so that manifests can be compared byte for byte.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data.errors import CorruptArtifactError

FILE_NAME = "manifest.json"


class FileEntry(BaseModel):
    """One immutable file of an artefact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str
    bytes: int
    rows: int | None = None
    key_min: tuple[str, ...] | None = None
    key_max: tuple[str, ...] | None = None


class Manifest(BaseModel):
    """Everything that is true of one finished artefact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    digest: str
    schema_version: int
    stage: str = ""
    stage_version: int = 0
    seed: int = 0
    config: dict[str, Any] = Field(default_factory=dict)
    parents: dict[str, list[str]] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    summary: dict[str, Any] = Field(default_factory=dict)
    gate: str = ""
    files: tuple[FileEntry, ...] = ()

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return sum(f.rows or 0 for f in self.files)

    @property
    def shards(self) -> tuple[FileEntry, ...]:
        """The Parquet shards, in order."""
        return tuple(f for f in self.files if f.name.endswith(".parquet"))

    def to_bytes(self) -> bytes:
        """The manifest as it lies on disk: sorted keys, one trailing newline."""
        return (json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, allow_nan=False) + "\n").encode()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an artefact folder; CorruptArtifactError where it cannot be understood."""
    path = folder / FILE_NAME
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise CorruptArtifactError(
            f"{folder} has no manifest: the stage that writes it did not finish", hint="run that stage again"
        ) from None
    except ValidationError as error:
        raise CorruptArtifactError(
            f"{path} cannot be read as a manifest ({error.error_count()} problems)",
            hint="delete the folder and run the stage again",
        ) from None


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(
    *,
    stage: str,
    stage_version: int,
    config: dict[str, Any],
    code: dict[str, str],
    parents: dict[str, list[str]],
    seed: int,
) -> str:
    """The digest that names a stage's output: the same for the same inputs, settings, code and seed (32 hex digits)."""
    versions = {"version": stage_version, "code": code}
    body = {"stage": stage, **versions, "config": config, "parents": parents, "seed": seed}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
