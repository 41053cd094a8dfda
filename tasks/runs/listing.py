"""Lists of runs with the bytes of their artifacts: of a run whose command ended, from one line of its journal."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypedDict

from gradus.data.errors import CorruptArtifactError, OnDamage, refuse
from gradus.data.lake.manifest import FILE_NAME, REPORT
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.records import JsonObject
from gradus.tasks.runs.history import (
    Attempt,
    Story,
    attempts,
    brief_from,
    counts_of,
    finished_outputs,
    missing,
    pass_at_1_of,
    read_open,
    run_folder,
    run_folders,
)
from gradus.tasks.runs.journal import last_end, read_events
from gradus.tasks.runs.records import Account, Brief, Done, RunSettings
from gradus.tasks.runs.run_settings import read_settings


class Listed(Brief):
    """A run with its gain in pass@1 and the bytes of its artifacts."""

    gain: float | None
    bytes: int


class RunList(TypedDict):
    """Every run, and the bytes of all artifacts."""

    runs: list[Listed]
    bytes: int
    bytes_by_table: dict[str, int]


class RunStory(Listed):
    """A run with everything that it did."""

    bytes_by_table: dict[str, int]
    attempts: list[Attempt]
    resumed: list[Account]
    """The prompts so far, kept and sampled again, each time that the run went on."""
    logs: str
    settings: RunSettings


class Sizes:
    """Bytes of the artifacts of a lake, by their manifests."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tables: set[str] = set()
        self._there: set[str] = set()
        self._bytes: dict[str, int | None] = {}

    def gone(self, refs: Collection[str]) -> set[str]:
        """Return the names that no folder has; each table is listed once, since each look is slow."""
        for table in {ref.partition("/")[0] for ref in refs} - self._tables:
            self._tables.add(table)
            with contextlib.suppress(OSError):
                self._there.update(f"{table}/{entry.name}" for entry in os.scandir(self._store.root / table))
        return set(refs) - self._there

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
        """The counts in the report of an artifact; empty if it has none, or is not there."""
        try:
            content = not self.gone((ref,)) and self._store.read_file(Ref.parse(ref), REPORT)
        except CorruptArtifactError as damage:
            on_damage(damage)
            return {}
        return json.loads(content).get("summary", {}) if content else {}


def list_runs(runs: Path, lake: Path, on_damage: OnDamage = refuse) -> RunList:
    """Every run, newest first: what `brief` says of it, its gain and bytes; and the bytes of all artifacts by table.

    An artifact that several runs have counts in each of them, and once in the sums.
    """
    sizes, outputs = Sizes(Store(lake)), dict[str, int]()
    listed: list[Listed] = []
    for folder in run_folders(runs):
        run, made = _listed(folder, sizes, on_damage)
        listed.append(run)
        outputs.update(made)
    return {"runs": listed, "bytes": sum(outputs.values()), "bytes_by_table": _by_table(outputs)}


def _by_table(outputs: Mapping[str, int]) -> dict[str, int]:
    """Bytes of artifacts by table, the largest first."""
    found: Counter[str] = Counter()
    for ref, num_bytes in outputs.items():
        found[ref.partition("/")[0]] += num_bytes
    return dict(found.most_common())


def read_run(runs: Path, run: str, lake: Path, on_damage: OnDamage = refuse) -> RunStory:
    """One run: what `list_runs` says of it, every stage attempt with the bytes of its artifact, and its settings."""
    folder = run_folder(runs, run)
    store = Store(lake)
    listed, outputs = _listed(folder, Sizes(store), on_damage)
    return {
        **listed,
        "bytes_by_table": _by_table(outputs),
        "attempts": [
            {**row, "bytes": outputs.get(row["output"], 0), "pruned": store.pruned_on(Ref.parse(row["output"]))}
            for row in attempts(folder, on_damage)
        ],
        "resumed": [event["account"] for event in read_events(folder, on_damage) if event["event"] == "resumed"],
        "logs": str(folder / "logs") if (folder / "logs").is_dir() else "",
        "settings": read_settings(folder, on_damage),
    }


def done_of(folder: Path, store: Store) -> Done | None:
    """Return what a run did so far, for the end of its journal; None if something of it is damaged or missing."""
    found: list[CorruptArtifactError] = []
    try:
        done = _done(read_open(folder, found.append), Sizes(store), found.append)
    except OSError:  # the end is written all the same
        return None
    whole = all(done["outputs"][output] is not None for output in done["outputs"].keys() - done["optional"])
    return done if whole and not found else None


def _done(story: Story, sizes: Sizes, on_damage: OnDamage) -> Done:
    rows = story.rows.values()
    outputs = dict.fromkeys(row["output"] for row in rows)
    states = [str(state_ref(Ref.parse(output))) for output in outputs if output.startswith(f"{CHECKPOINTS}/")]
    due = set(finished_outputs(rows))
    return {
        **counts_of(story),
        "gain": _gain(story.pass_at_1, lambda output: sizes.summary(output, on_damage)),
        "outputs": {output: sizes.of(output, on_damage) for output in (*outputs, *states)},
        "optional": [*(output for output in outputs if output not in due), *states],
    }


def _listed(folder: Path, sizes: Sizes, on_damage: OnDamage) -> tuple[Listed, dict[str, int]]:
    """Return the summary of a run for a list, and the bytes of its artifacts that are there.

    If its journal ends with what the run did so far, no other line and no manifest is read.
    """
    story, done = _ended(folder, sizes, on_damage)
    if done is None:
        story = read_open(folder, on_damage)
        done = _done(story, sizes, on_damage)
    brief, outputs = brief_from(folder, story, done, on_damage), done["outputs"]
    gone = sizes.gone(outputs) | {output for output, num_bytes in outputs.items() if num_bytes is None}
    for output in gone.difference(done["optional"]):
        on_damage(missing(output, folder.name, brief["verb"]))
    there = {output: num_bytes or 0 for output, num_bytes in outputs.items() if output not in gone}
    return {**brief, "gain": done["gain"], "bytes": sum(there.values())}, there


def _ended(folder: Path, sizes: Sizes, on_damage: OnDamage) -> tuple[Story, Done | None]:
    """Return how the last command ended, and what the run did until then if that is known.

    Artifacts that lost files after it are measured again.
    """
    story, done = Story(), None
    with contextlib.suppress(CorruptArtifactError):  # raised again where the whole journal is read
        for event in last_end(folder):
            if event["event"] == "run_finished":
                story, done = Story(status=event["status"], error=event["error"]), event.get("so_far")
            elif event["event"] == "pruned" and done:
                refs = [Ref.parse(output) for output in event["outputs"]]
                names = map(str, (*refs, *map(state_ref, refs)))
                done["outputs"] |= {name: sizes.of(name, on_damage) for name in names}
            else:
                return Story(), None
        return story, done
    return Story(), None


def _gain(pass_at_1: Mapping[int, float | str | None], summary: Callable[[str], Mapping[str, object]]) -> float | None:
    """pass@1 after the last round that was evaluated, less that of the starting policy; None without both."""
    last = max(pass_at_1, default=0)
    if not last or 0 not in pass_at_1:
        return None
    found = (pass_at_1[index] for index in (0, last))
    before, after = (pass_at_1_of(summary(value)) if isinstance(value, str) else value for value in found)
    return None if before is None or after is None else after - before
