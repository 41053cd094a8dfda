"""Which artifacts belong to which run, and which scores it used for which rollouts: journals and manifests, read once.

A run has, for each stage, round and purpose, what the last command that came so far made or reused. Rollouts are paired
with scores by the manifest of the scores; where that names other rollouts of the same bytes, with those of the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from gradus.data.lake.manifest import Manifest
from gradus.data.lake.schema import CHECKPOINTS, TABLES
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.views import USED
from gradus.tasks.runs.history import Attempt, Brief, attempts, brief


@dataclass(frozen=True)
class Run:
    """A run as its journal tells it."""

    folder: Path

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.folder.name

    @cached_property
    def brief(self) -> Brief:
        """What `gradus runs` lists of it."""
        return brief(self.folder)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """Its stage attempts; the purpose of a verb alone is the verb, so that `train` means training."""
        alone = {"train": None, "evaluate": "eval"}.get(self.brief["verb"], self.brief["verb"])
        return [
            {**row, "purpose": alone if alone and row["purpose"] == "train" else row["purpose"]}
            for row in attempts(self.folder)
        ]


@dataclass(frozen=True)
class Use:
    """Rollouts of a run with the scores that it used; no run where none names them."""

    run: str | None
    round: int | None
    purpose: str | None
    rollouts: Ref
    scores: Ref | None


class Lineage:
    """The artifacts that a query may read: those of a lake, or of chosen runs. Satisfies `views.Lake`."""

    def __init__(self, store: Store, runs: Sequence[Run], *, whole_lake: bool) -> None:
        self._store = store
        self.runs = runs
        self._whole_lake = whole_lake
        self._manifests: dict[Ref, Manifest | None] = {}
        self._contents: dict[Ref, str] = {}

    def artifacts(self, table: str) -> list[Ref]:
        """The finished artifacts of a table: all of the lake, or what the runs made, reused or were given."""
        if self._whole_lake:
            folders = sorted((self._store.root / table).glob("*"))
            named = [Ref(table, folder.name) for folder in folders if folder.is_dir()]
        else:
            named = [ref for ref in self._of_runs if ref.table == table]
        return [ref for ref in named if self._manifest(ref) is not None]

    def judged(self) -> Mapping[str, str]:
        """The rollouts of each scores artifact: by its manifest, or by the stage that was given both."""
        found = {use.scores.digest: use.rollouts.digest for use in self.uses if use.scores} if self._unnamed else {}
        named = {ref: self.parents(ref, "rollouts") for ref in self.artifacts("scores")}
        return found | {ref.digest: parents[0].digest for ref, parents in named.items() if len(parents) == 1}

    def used(self) -> pa.Table:
        """What each run used, and what none did, as rows of the schema USED."""
        return self._used

    def current(self, run: Run) -> list[Attempt]:
        """The attempts whose artifacts the run has: whole ones, of the last command that came to the stage."""
        rows = [row for row in run.attempts if self._has(row)]
        last: dict[tuple[str, int, str], int] = {}
        for row in rows:
            last[_key(row)] = max(row["start"], last.get(_key(row), 0))
        return list({(_key(row), row["output"]): row for row in rows if row["start"] == last[_key(row)]}.values())

    def parents(self, ref: Ref, role: str) -> list[Ref]:
        """What the manifest of an artifact names in a role; nothing where the artifact is gone."""
        manifest = self._manifest(ref)
        return [Ref.parse(text) for text in manifest.parents.get(role, ())] if manifest else []

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
                "problems": next((p.digest for p in self._problems(use) if self._manifest(p)), None),
            }
            for use in self.uses
            if self._manifest(use.rollouts)
        ]
        return pa.Table.from_pylist(rows, schema=USED)

    @cached_property
    def _of_runs(self) -> list[Ref]:
        made = {Ref.parse(row["output"]) for run in self.runs for row in run.attempts if self._has(row)}
        read = {
            Ref.parse(text)
            for ref in made
            if (manifest := self._manifest(ref))
            for texts in manifest.parents.values()
            for text in texts
        }
        return sorted((ref for ref in made | read if ref.table in (*TABLES, CHECKPOINTS)), key=str)

    @property
    def _unnamed(self) -> bool:
        """Whether there are scores that no stage made, such as a user's file."""
        return any(not self.parents(ref, "rollouts") for ref in self.artifacts("scores"))

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
        for row, ref in ((row, Ref.parse(row["output"])) for row in rows):
            for parent in self.parents(ref, "rollouts"):
                if self._same(parent, made) not in made:
                    pairs[row["round"], row["purpose"], parent] = self._given(parent, self.parents(ref, "scores"))
        for (round_, purpose, rollouts), scores in pairs.items():
            yield Use(run.name, round_, purpose, rollouts, scores)

    def _given(self, rollouts: Ref, scores: Sequence[Ref]) -> Ref | None:
        """Of the scores that a stage was given, those of these rollouts; a user's, which name none, may be anyone's."""
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
        judged = self.parents(use.scores, "problems") if use.scores else []
        return [*self.parents(use.rollouts, "problems"), *judged]

    def _same(self, ref: Ref, among: Sequence[Ref]) -> Ref:
        """The artifact itself if it is among these, else the one of these that has the same bytes, else itself."""
        if ref in among or not self._manifest(ref):
            return ref
        content = self._content(ref)
        return next((other for other in among if self._content(other) == content), ref)

    def _content(self, ref: Ref) -> str:
        if ref not in self._contents:
            self._contents[ref] = self._store.content_key(ref)
        return self._contents[ref]

    def _has(self, row: Attempt) -> bool:
        return row["status"] in ("finished", "reused", "failed") and bool(self._manifest(Ref.parse(row["output"])))

    def _manifest(self, ref: Ref) -> Manifest | None:
        if ref not in self._manifests:
            self._manifests[ref] = self._store.find(ref)
        return self._manifests[ref]


def _key(row: Attempt) -> tuple[str, int, str]:
    return row["stage"], row["round"], row["purpose"]


def _outputs(rows: Sequence[Attempt], table: str) -> Iterator[tuple[Attempt, Ref]]:
    refs = ((row, Ref.parse(row["output"])) for row in rows)
    return ((row, ref) for row, ref in refs if ref.table == table)
