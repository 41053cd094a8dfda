"""Cache of a run's journal and artifacts, kept beside the journal so that listing 1,000 runs stays quick.

`<run folder>/.summary.json` holds a checksum and one JSON object: the size and time of the files that it was read from,
and what was read. One that is damaged, of another version or older than those files is read anew. Nothing else reads
it: deleting it costs milliseconds. The bytes of an artifact, which never changes, are those that it had then; whether
it is still there is looked up every time.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import TypedDict

from gradus.data.errors import CorruptArtifactError, OnDamage
from gradus.data.files import read_cache, write_cache
from gradus.data.lake.manifest import FILE_NAME, REPORT
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.tasks.runs.journal import EVENTS
from gradus.tasks.runs.records import Brief

_NAME = ".summary.json"
_VERSION = 4

Proof = list[int]


class Facts(TypedDict):
    """Facts of a run in its journal, whoever works on it now; an open run has no status and no error."""

    brief: Brief
    at_work: list[str]


class KeptFacts(Facts):
    """Cached facts: bytes by artifact, those that must be there, the gain in pass@1, and the journal's facts."""

    outputs: dict[str, int]
    finished: list[str]
    gain: float | None


def proof_of(folder: Path) -> Proof:
    """Return the size and time of each file that a summary is made from; take it before they are read."""
    return [_VERSION, *_stat(folder / EVENTS), *_stat(folder / "run.json")]


def recall(folder: Path, proof: Proof) -> KeptFacts | None:
    """Return the cached facts of a run, if they were read from the files as they are."""
    body = read_cache(folder / _NAME)
    return body["facts"] if isinstance(body, dict) and body.get("proof") == proof else None


def keep(folder: Path, proof: Proof, facts: KeptFacts) -> None:
    """Keep what was read of a run; a folder that cannot be written is read again the next time."""
    with contextlib.suppress(OSError):
        write_cache(folder / _NAME, {"proof": proof, "facts": facts})


class Sizes:
    """Bytes of the artifacts of a lake, by their manifests."""

    def __init__(self, lake: Path) -> None:
        self._store = Store(lake)
        self._there: dict[str, frozenset[str]] = {}
        self._bytes: dict[str, int | None] = {}

    def has(self, ref: str) -> bool:
        """Return whether there is a folder of that name; each table is listed once, since each look is slow."""
        table, _, digest = ref.partition("/")
        if table not in self._there:
            try:
                self._there[table] = frozenset(entry.name for entry in os.scandir(self._store.root / table))
            except OSError:
                self._there[table] = frozenset()
        return digest in self._there[table]

    def of(self, ref: str, on_damage: OnDamage) -> int | None:
        """Bytes of an artifact, its manifest included and what was pruned left out; None if it has no manifest.

        0 if it is damaged.
        """
        if ref not in self._bytes:
            try:
                self._bytes[ref] = self._measured(Ref.parse(ref))
            except CorruptArtifactError as damage:
                on_damage(damage)
                return 0
        return self._bytes[ref]

    def _measured(self, ref: Ref) -> int | None:
        manifest = self._store.whole(ref)
        if manifest is None:
            return None
        gone = self._store.pruned(ref)
        own = (self._store.path(ref) / FILE_NAME).stat().st_size
        return own + sum(file.bytes for file in manifest.files if file.name not in gone)

    def summary(self, ref: str, on_damage: OnDamage) -> JsonObject:
        """The counts in the report of an artifact; empty if it has none."""
        try:
            content = self._store.read_file(Ref.parse(ref), REPORT)
        except CorruptArtifactError as damage:
            on_damage(damage)
            return {}
        return json.loads(content).get("summary", {}) if content else {}


def _stat(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
