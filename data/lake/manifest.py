"""The manifest: what an artifact consists of, written last and therefore the proof that it is whole.

It holds nothing that differs between two undisturbed runs of the same identity (no clock, host or attempt number),
so that manifests can be compared byte for byte. It proves itself: `sha256` is the digest of everything else in it,
and the artifact's name is the digest of `identity`, what the name was computed from.
"""

import hashlib
import json
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.names import Ref, file_name
from gradus.data.records import JsonObject

FILE_NAME = "_manifest.json"
"""Readers of Parquet folders skip names that begin with an underscore."""
REPORT = "_report.json"
"""The counts and metrics of the stage that made the artifact."""
NAMED = "named"
"""The setting of an adopted policy that holds what the user called it: a folder, or `id@revision` on the hub."""
POINTER = "train_state.json"
"""The file of a checkpoint that names its train state; a policy from elsewhere has none, and cannot be restored."""
MAX_BYTES = 32 << 20
"""Bytes of a manifest at most: those of more than 100,000 files."""


def _file(name: str) -> str:
    """Return the name of a file; raise ValueError if no file of an artifact can be called so."""
    if name == FILE_NAME:
        raise ValueError(f"{name} is no file of an artifact")
    return _checked(file_name, name)


def _reference(text: str) -> str:
    """Return the name of an artifact; raise ValueError if there can be none of that name."""
    return _checked(Ref.parse, text)


def _checked(read: Callable[[str], object], text: str) -> str:
    try:
        return str(read(text))
    except BadInputError as error:
        raise ValueError(error.message) from None


class FileEntry(BaseModel):
    """One immutable file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(_file)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]
    rows: Annotated[int | None, Field(ge=0)] = None


class Manifest(BaseModel):
    """Everything that is true of one finished artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    digest: str
    schema_version: int
    identity: dict[str, Any] = Field(default_factory=dict)
    """Data that the digest was computed from; empty for an artifact that no stage made."""
    config: dict[str, Any] = Field(default_factory=dict)
    """All settings of the attempt, those that its result does not depend on included."""
    parents: dict[str, list[Annotated[str, AfterValidator(_reference)]]] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    files: tuple[FileEntry, ...] = ()
    sha256: str = ""
    """Digest of this manifest without this field."""

    @model_validator(mode="after")
    def _names_are_names(self) -> Self:
        _reference(f"{self.table}/{self.digest}")
        twice = [name for name, count in Counter(f.name for f in self.files).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        return self

    @property
    def ref(self) -> Ref:
        """The name of the artifact."""
        return Ref(self.table, self.digest)

    @property
    def stage(self) -> str:
        """The stage that made the artifact; empty for what a user supplied."""
        return str(self.identity.get("stage", ""))

    def parent(self, role: str) -> Ref | None:
        """Return the first artifact that this one was made of in a role; None if there is none."""
        return next(map(Ref.parse, self.parents.get(role, ())), None)

    @property
    def rows(self) -> int:
        """Rows in all shards."""
        return sum(f.rows or 0 for f in self.files)

    @property
    def shards(self) -> tuple[FileEntry, ...]:
        """The Parquet shards, in order."""
        return tuple(f for f in self.files if f.name.endswith(".parquet"))

    def sealed(self) -> "Manifest":
        """Return the manifest with the digest of itself."""
        return self.model_copy(update={"sha256": self._own_digest()})

    def flaw(self, text: bytes) -> str:
        """Return what contradicts itself in a manifest that `text` holds, as the end of a sentence; empty if nothing.

        It is written again to be compared only if the text is not as we write it: that takes longer than all else here.
        Raise ValueError for a number that JSON has no words for.
        """
        unsealed = text.replace(f'\n "sha256": "{self.sha256}"'.encode(), b'\n "sha256": ""')
        is_ours = not any(word in text for word in _NO_JSON) and hashlib.sha256(unsealed).hexdigest() == self.sha256
        if not is_ours and self._own_digest() != self.sha256:
            return "does not have the digest that it names"
        if self.identity and identity_digest(self.identity) != self.digest:
            return "was not made from what its name says"
        return ""

    def to_bytes(self) -> bytes:
        """The manifest as it lies on disk: sorted keys, one trailing newline."""
        return (json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, allow_nan=False) + "\n").encode()

    def _own_digest(self) -> str:
        return hashlib.sha256(self.model_copy(update={"sha256": ""}).to_bytes()).hexdigest()


_NO_JSON = (b"NaN", b"Infinity")

CURE = "delete its folder and run the same command again: only this artifact is computed anew"


def read_manifest(folder: Path, cure: str = CURE) -> Manifest:
    """Read the manifest of an artifact folder; raise CorruptArtifactError if it is missing, unreadable or altered.

    No name in it leads out of the folder.
    """
    path = folder / FILE_NAME
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            problem = f"is larger than {MAX_BYTES >> 20} MB" if found.st_size > MAX_BYTES else "is no file"
            raise CorruptArtifactError(f"{path} {problem}", hint=cure)
        text = path.read_bytes()
        manifest = Manifest.model_validate_json(text)
        flaw = manifest.flaw(text)
    except FileNotFoundError:
        message = f"{folder} has no manifest: the stage that writes it did not finish"
        raise CorruptArtifactError(message, hint="run that stage again") from None
    except ValidationError as error:
        raise CorruptArtifactError(f"{path} cannot be read as a manifest ({_fault(error)})", hint=cure) from None
    except ValueError:  # a number that JSON has no words for
        raise CorruptArtifactError(f"{path} cannot be read as a manifest (1 problems)", hint=cure) from None
    if flaw:
        raise CorruptArtifactError(f"{path} {flaw}", hint=cure)
    return manifest


def _fault(error: ValidationError) -> str:
    """Return our own words for what is wrong in a manifest, the number of problems if there are none."""
    for each in error.errors(include_url=False, include_input=False):
        if each["type"] == "value_error":
            return str(each.get("ctx", {}).get("error"))
    return f"{error.error_count()} problems"


def weight_files(files: Iterable[FileEntry]) -> list[FileEntry]:
    """Return the weights among the files of a checkpoint that an update made; none of any other artifact."""
    listed = list(files)
    trained = any(entry.name == POINTER for entry in listed)
    return [entry for entry in listed if trained and entry.name.endswith(".safetensors")]


def pruned_files(folder: Path, files: Iterable[FileEntry]) -> frozenset[str]:
    """Return the names of the weights that are not in the folder of an artifact: removed to make room, not corrupt."""
    return frozenset(entry.name for entry in weight_files(files) if not (folder / entry.name).exists())


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(body: object) -> str:
    """Return the SHA-256 of a value as JSON, the same in whichever order its keys are."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def identity_digest(identity: JsonObject) -> str:
    """Return the name of the artifact with this identity: 32 hex digits, the same for the same values."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
