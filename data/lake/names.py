"""Names that become paths: of an artifact, and of the files in it. They are checked when they are made.

A manifest, a receipt or a note may come from a stranger, so none of them is joined to a folder before it passed here.
"""

import os
import re
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import BadInputError, shortened

_TABLE_NAME = re.compile(r"[a-z_]{1,40}")
_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_PART_BYTES = 200
"""Longest name of a file; a temporary one beside it is longer, and file systems take 255 bytes."""
_NUM_PARTS = 8


@dataclass(frozen=True)
class Ref:
    """The name of one artifact; raise BadInputError if it is not one, so that it never leads out of a lake.

    >>> str(Ref.parse("rollouts/00aa11bb22cc33dd"))
    'rollouts/00aa11bb22cc33dd'
    """

    table: str
    digest: str

    def __post_init__(self) -> None:
        """Check both parts."""
        if not (_TABLE_NAME.fullmatch(self.table) and _DIGEST.fullmatch(self.digest)):
            message = f"{shortened(str(self))!r} is not an artifact reference"
            raise BadInputError(message, hint="write it as table/digest")

    def __str__(self) -> str:
        return f"{self.table}/{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "Ref":
        """Read `table/digest`; raise BadInputError if the text is anything else."""
        table, _, digest = text.partition("/")
        return cls(table, digest)

    @classmethod
    def found(cls, table: str, digest: str) -> "Ref | None":
        """Return the artifact of a table with this digest; None if no artifact can be called so."""
        return cls(table, digest) if _TABLE_NAME.fullmatch(table) and _DIGEST.fullmatch(digest) else None


def artifacts_of(lake: Path, table: str) -> list[Ref]:
    """Return the artifacts of a table, finished or not, in the order of their digests."""
    folder = lake / table
    names = sorted(os.listdir(folder)) if folder.is_dir() else ()  # noqa: PTH208 - of many, and pathlib is slow
    return [ref for name in names if (ref := Ref.found(table, name)) is not None]


def file_name(name: str) -> str:
    """Return the name of a file of an artifact, with slashes after folders; raise BadInputError if it is none.

    It leads to a file in the artifact's folder: no part of it is empty, `..` or begins with a dot, which our own files
    beside those of an artifact do (locks, receipts, scratch).
    """
    parts = name.split("/")
    if "\\" in name or len(parts) > _NUM_PARTS or not all(map(_is_part, parts)):
        message = f"{shortened(name)!r} is no name of a file of an artifact"
        raise BadInputError(message, hint="give the file another name")
    return name


def _is_part(part: str) -> bool:
    if not part or part.startswith(".") or any(unicodedata.category(char).startswith("C") for char in part):
        return False
    return len(part.encode()) <= _PART_BYTES


def regular_file(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder from elsewhere; raise FileNotFoundError if there is none.

    Raise BadInputError if it, or a folder between, is a link or anything else that is not a file's own content.
    """
    path = folder
    *above, last = file_name(name).split("/")
    for part in above:
        path = path / part
        _refuse_other(path, stat.S_ISDIR(path.lstat().st_mode), "folder")
    path = path / last
    _refuse_other(path, stat.S_ISREG(path.lstat().st_mode), "file")
    return path


def _refuse_other(path: Path, is_it: bool, kind: str) -> None:
    if not is_it:
        what = "a link" if path.is_symlink() else f"no {kind}"
        raise BadInputError(f"{shortened(str(path))} is {what}", hint=f"put the {kind} itself there")


def regular_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder from elsewhere by name, but those that begin with a dot and folders below.

    Raise BadInputError for a link. One in a snapshot of a hub's cache is taken: it leads to a file of the same cache.
    """
    place, found = folder.resolve(), dict[str, Path]()
    for path in sorted(place.iterdir()):
        if not path.name.startswith(".") and not path.is_dir():
            found[path.name] = path.resolve() if _is_of_hub(path) else regular_file(place, path.name)
    return found


def _is_of_hub(path: Path) -> bool:
    """Return whether a link is one of `snapshots/REVISION` to a regular file of `blobs` beside that."""
    blobs = path.parent.parent.parent / "blobs"
    if path.parent.parent.name != "snapshots" or not path.is_symlink():
        return False
    return path.resolve().parent == blobs and path.is_file()
