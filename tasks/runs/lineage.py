"""Artifacts of each run, and the scores it used for its rollouts: journals and manifests, read once.

For each stage, round and purpose a run owns the artifact of the latest command that reached that stage. Rollouts are
paired with scores by the manifest of the scores; if it names other rollouts of the same bytes, with those of the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from pathlib import Path

import pyarrow as pa

from gradus.data.errors import CorruptArtifactError, OnDamage, refuse
from gradus.data.lake.index import Index, Listed
from gradus.data.lake.names import artifacts_of
from gradus.data.lake.schema import CHECKPOINTS, TABLES
from gradus.data.lake.store import Ref, Store
from gradus.tasks.runs.history import (
    Attempt,
    Key,
    Story,
    brief_from,
    counts_of,
    finished_outputs,
    key_of,
    missing,
    of_run,
    read_story,
)
from gradus.tasks.runs.records import Brief

_TEXT = pa.string()
USED = pa.schema(
    [
        *(("run", _TEXT), ("round", pa.int64()), ("purpose", _TEXT)),
        *(("rollouts", _TEXT), ("scores", _TEXT), ("problems", _TEXT)),
    ]
)
"""Digests of the rollouts that a run used, of their scores and their problems; a null run where no run names them."""


@dataclass(frozen=True)
class Run:
    """A run as its journal tells it."""

    folder: Path
    on_damage: OnDamage = refuse

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.folder.name

    @cached_property
    def brief(self) -> Brief:
        """Return its line of `gradus runs`."""
        return brief_from(self.folder, self.story, counts_of(self.story), self.on_damage)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """Its stage attempts; the purpose of a verb alone is the verb, so that `train` means training."""
        alone = {"train": None, "evaluate": "eval"}.get(self.brief["verb"], self.brief["verb"])
        return [
            {**row, "purpose": alone if alone and row["purpose"] == "train" else row["purpose"]}
            for row in self.story.rows.values()
        ]

    @cached_property
    def whole(self) -> list[Ref]:
        """The artifacts that must be there: what it finished or reused last, and what was read for it."""
        made = finished_outputs(self.story.rows.values())
        read = (text for output in made for texts in self.story.inputs.get(output, {}).values() for text in texts)
        return list(map(_ref, dict.fromkeys((*made, *read))))

    @cached_property
    def story(self) -> Story:
        """Its journal."""
        return read_story(self.folder, self.on_damage)


@dataclass(frozen=True)
class Use:
    """Rollouts of a run with the scores that it used; no run where none names them."""

    run: str | None
    round: int | None
    purpose: str | None
    rollouts: Ref
    scores: Ref | None


class Lineage:
    """The artifacts that a query may read: those of a lake, or of chosen runs."""

    def __init__(self, store: Store, runs: Sequence[Run], *, whole_lake: bool, on_damage: OnDamage = refuse) -> None:
        self._store = store
        self.runs = runs
        self._whole_lake = whole_lake
        self._on_damage = on_damage
        self.index = Index(store)
        self._found: dict[Ref, Listed | None] = {}
        self._missed: set[Ref] = set()
        self._content = cache(store.content_key)

    def artifacts(self, table: str) -> list[Ref]:
        """The finished artifacts of a table: all of the lake, or what the runs made, reused or were given last."""
        if self._whole_lake:
            due = (ref for ref in self._due if ref.table == table)
            named = sorted({*artifacts_of(self._store.root, table), *due}, key=str)
        else:
            named = [ref for ref in self._of_runs if ref.table == table]
        return [ref for ref in named if self._find(ref) is not None]

    def verified(self, ref: Ref, pattern: str) -> list[Path]:
        """Return the verified files of an artifact whose names match; none if it is damaged or missing."""
        found = self._find(ref)
        if found is None and ref not in self._missed:
            self._damaged(ref, CorruptArtifactError(f"{ref} is missing"))
        files = [each for each in found.files if fnmatchcase(each.name, pattern)] if found else []
        try:
            return self._store.verified(ref, files)
        except CorruptArtifactError as damage:
            self._damaged(ref, damage)
            return []

    def _damaged(self, ref: Ref, damage: CorruptArtifactError) -> None:
        """Say of an artifact that it is damaged, and what to do about it."""
        self._missed.add(ref)
        run = self._due.get(ref)
        if run is None:
            self._on_damage(damage)
        else:
            self._on_damage(of_run(damage, self._store.path(ref), run.name, run.brief["verb"]))

    def judged(self) -> Mapping[str, str]:
        """The rollouts of each scores artifact: by its manifest, or by the stage that was given both."""
        named = {ref: self.parents(ref, "rollouts") for ref in self.artifacts("scores")}
        uses = () if all(named.values()) else self.uses  # for scores that no stage made, such as a user's file
        found = {use.scores.digest: use.rollouts.digest for use in uses if use.scores}
        return found | {ref.digest: parents[0].digest for ref, parents in named.items() if len(parents) == 1}

    def used(self) -> pa.Table:
        """Return the artifacts that each run used, and those that none did, as rows of the schema USED."""
        return self._used

    def rounds(self) -> Mapping[str, int]:
        """The first round in which a run used rollouts, by their digest."""
        found: dict[str, int] = {}
        for row, ref in (pair for run in self.runs for pair in _outputs(run.attempts, "rollouts")):
            found[ref.digest] = min(row["round"], found.get(ref.digest, row["round"]))
        return found

    def current(self, run: Run) -> list[Attempt]:
        """The attempts whose artifacts the run has: whole ones, of the last command that came to the stage."""
        rows = [row for row in run.attempts if self._has(row)]
        last: dict[Key, int] = {}
        for row in rows:
            last[key_of(row)] = max(row["start"], last.get(key_of(row), 0))
        return list({(key_of(row), row["output"]): row for row in rows if row["start"] == last[key_of(row)]}.values())

    def parents(self, ref: Ref, role: str) -> list[Ref]:
        """Return the artifacts that a manifest names in a role; nothing where the artifact is gone."""
        found = self._find(ref)
        return [_ref(text) for text in found.parents.get(role, ())] if found else []

    @cached_property
    def uses(self) -> list[Use]:
        """Every pair of rollouts and scores of every run; of the whole lake also those that no run has."""
        found = [use for run in self.runs for use in self._uses(run)]
        return [*found, *self._left(found)] if self._whole_lake else found

    @cached_property
    def _used(self) -> pa.Table:
        rows = [
            {
                "run": use.run,
                "round": use.round,
                "purpose": use.purpose,
                "rollouts": use.rollouts.digest,
                "scores": use.scores.digest if use.scores else None,
                "problems": next((p.digest for p in self._problems(use) if self._of_use(use, p)), None),
            }
            for use in self.uses
            if self._of_use(use, use.rollouts)
        ]
        return pa.Table.from_pylist(rows, schema=USED)

    @cached_property
    def _of_runs(self) -> list[Ref]:
        made = {(_ref(row["output"]), run.name): run for run in self.runs for row in self.current(run)}
        chosen = {ref for ref, _ in made}
        for (ref, _), run in made.items():
            found = self._find(ref)
            inputs = {**(found.parents if found else {}), **run.story.inputs.get(str(ref), {})}
            for text in (text for texts in inputs.values() for text in texts):
                chosen.add(_ref(text))
                self._due.setdefault(_ref(text), run)
        return sorted((ref for ref in chosen if ref.table in (*TABLES, CHECKPOINTS)), key=str)

    @cached_property
    def _due(self) -> dict[Ref, Run]:
        """The artifacts that must be there, by journals and by manifests of what runs made, each with such a run."""
        return {ref: run for run in self.runs for ref in run.whole}

    def _uses(self, run: Run) -> Iterator[Use]:
        """The rollouts that a run made or was given, once for each round and purpose."""
        rows = self.current(run)
        sampled: dict[tuple[int, str], list[Ref]] = {}
        pairs: dict[tuple[int, str, Ref], Ref | None] = {}
        for row, ref in _outputs(rows, "rollouts"):
            sampled.setdefault((row["round"], row["purpose"]), []).append(ref)
            pairs[row["round"], row["purpose"], ref] = None
        for row, ref in _outputs(rows, "scores"):
            for parent in self.parents(ref, "rollouts"):
                own = self._same(parent, sampled.get((row["round"], row["purpose"]), ()))
                pairs[row["round"], row["purpose"], own] = ref
        made = list(dict.fromkeys(rollouts for _, _, rollouts in pairs))
        for row in rows:
            for parent in self.parents(ref := _ref(row["output"]), "rollouts"):
                if self._same(parent, made) not in made:
                    pairs[row["round"], row["purpose"], parent] = self._given(parent, self.parents(ref, "scores"))
        for (round_, purpose, rollouts), scores in pairs.items():
            yield Use(run.name, round_, purpose, rollouts, scores)

    def _given(self, rollouts: Ref, scores: Sequence[Ref]) -> Ref | None:
        """Return the scores of these rollouts. Scores from a user's file name no rollouts and match any."""
        named = [ref for ref in scores if rollouts in self.parents(ref, "rollouts")]
        return next(iter([*named, *(ref for ref in scores if not self.parents(ref, "rollouts"))]), None)

    def _left(self, found: Sequence[Use]) -> Iterator[Use]:
        """Scores and rollouts of the lake that no run has."""
        scores, rollouts = {use.scores for use in found}, {use.rollouts for use in found}
        for ref in self.artifacts("scores"):
            if ref not in scores:
                for parent in self.parents(ref, "rollouts"):
                    rollouts.add(parent)
                    yield Use(None, None, None, parent, ref)
        for ref in self.artifacts("rollouts"):
            if ref not in rollouts:
                yield Use(None, None, None, ref, None)

    def _problems(self, use: Use) -> list[Ref]:
        """Those that it was judged by, then those that it was first sampled from, whose answers may be others."""
        judged = self.parents(use.scores, "problems") if use.scores else []
        return [*judged, *self.parents(use.rollouts, "problems")]

    def _same(self, ref: Ref, among: Sequence[Ref]) -> Ref:
        """The artifact itself if it is among these, else the one of these that has the same bytes, else itself."""
        if ref in among or not self._find(ref):
            return ref
        content = self._content(ref)
        return next((other for other in among if self._content(other) == content), ref)

    def _has(self, row: Attempt) -> bool:
        return row["status"] in ("finished", "reused", "failed") and bool(self._find(_ref(row["output"])))

    def _of_use(self, use: Use, ref: Ref) -> Listed | None:
        """An artifact that a run read; missing, it is damage."""
        if use.run is not None and ref not in self._due:
            self._due[ref] = next(run for run in self.runs if run.name == use.run)
        return self._find(ref)

    def _find(self, ref: Ref) -> Listed | None:
        """An artifact; None if it is not finished, and damage if it is damaged or a run must have it."""
        if ref not in self._found:
            try:
                self._found[ref] = self.index.find(ref)
            except CorruptArtifactError as damage:
                self._found[ref] = None
                self._damaged(ref, damage)
        found = self._found[ref]
        if found is None and ref not in self._missed and ref in self._due:
            self._missed.add(ref)
            run = self._due[ref]
            self._on_damage(missing(str(ref), run.name, run.brief["verb"]))
        return found


_ref = lru_cache(1 << 16)(Ref.parse)


def _outputs(rows: Sequence[Attempt], table: str) -> Iterator[tuple[Attempt, Ref]]:
    refs = ((row, _ref(row["output"])) for row in rows)
    return ((row, ref) for row, ref in refs if ref.table == table)
