"""The name of an exported adapter's base: the user's own name for it, so that the folder can be taken elsewhere.

Policies are content-addressed; the user's name for a base is only in the recipe of the run that first adapted it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.manifest import sha256_file
from gradus.data.lake.store import Ref, Store
from gradus.models.policy_files import is_adapter
from gradus.tasks.artifacts.policies import base_named_by
from gradus.tasks.preflight.checks import REFERENCE, bundled


@dataclass(frozen=True)
class BaseName:
    """A folder, or a model of the hub with its revision.

    >>> BaseName.parse("Qwen/Qwen2.5-0.5B@060db64")
    BaseName(name='Qwen/Qwen2.5-0.5B', revision='060db64')
    """

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "BaseName":
        """Read a folder, `id` or `id@revision`."""
        name, _, revision = text.partition("@")
        is_folder = Path(text).is_absolute() or Path(text).exists()
        return cls(name, revision) if revision and not is_folder else cls(text)

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


def known_name(store: Store, ref: Ref, base: Ref, policy_of: Callable[[Ref], str]) -> BaseName:
    """Return the user's name for the base of an adapter; the path of the artifact if it is unknown.

    `policy_of` returns the starting policy of the run that made a checkpoint, as its recipe has it; empty if none did.
    """
    found = None
    try:
        made, start = _first_update(store, ref)
        if made is not None and _before(store, base) is None:  # else the base was trained in this lake
            found = _named(store, base, policy_of(made), is_adapted=start != base)
    except (BadInputError, CorruptArtifactError):
        pass  # an adapter between is not in this lake, or one of the user's is no longer where it was
    return found or BaseName(str(store.path(base)))


def _first_update(store: Store, ref: Ref) -> tuple[Ref | None, Ref]:
    """Return the first checkpoint that an update made of those that led to this one, and what that was made of."""
    made: Ref | None = None
    while (before := _before(store, ref)) is not None:
        made, ref = ref, before
    return made, ref


def _before(store: Store, ref: Ref) -> Ref | None:
    named = store.manifest(ref).parents.get("policy")
    return Ref.parse(named[0]) if named else None


def _named(store: Store, base: Ref, policy: str, *, is_adapted: bool) -> BaseName | None:
    """The base's name by a starting policy, which is the base or an adapter on it.

    None if that is not a name (an artifact, the bundled policy), or that of a folder with other files now.
    """
    text = _base_in(policy) if is_adapted else policy
    if not text or REFERENCE.fullmatch(text) or bundled(text) is not None:
        return None
    if Path(text).is_dir():
        return BaseName(str(Path(text).resolve())) if _holds(Path(text), store, base) else None
    named = BaseName.parse(text)
    return named if named.revision else None  # else a folder that is no longer there


def _base_in(policy: str) -> str:
    """The base as a policy has it that is an adapter, `ADAPTER` or `ADAPTER+BASE`; empty for one of the hub."""
    if Path(policy).is_dir():
        return base_named_by(Path(policy)) if is_adapter(Path(policy)) else ""
    return policy.partition("+")[2]


def _holds(folder: Path, store: Store, base: Ref) -> bool:
    """Return whether a folder has the files of an artifact."""
    entries = store.manifest(base).files
    return all((folder / e.name).is_file() and sha256_file(folder / e.name) == e.sha256 for e in entries)
