"""`bisect`, as a Prefect flow: the round from which a costly auditor disagrees with a run's verdicts.

The auditor is a reward, or the user, whose labels are lines of a file. The audited rows of a round are an artifact of
their own, so the same command judges nothing again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, bools, floats, positions, take_or_null
from gradus.data.errors import UsageError
from gradus.data.lake.manifest import json_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.seeds import derive_seed
from gradus.flows.agreement.bisect_asked import BisectAsked, bisect_asked
from gradus.flows.agreement.ready import Stored, check_rewards, settings_of, stored_of
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import form_of, gradus_flow
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.identity.pins import pinned
from gradus.tasks.inspect.agreement.labels import LABELS, ask_for, read_labels
from gradus.tasks.inspect.agreement.numbers import Audited, Bisected, chosen_rows, search
from gradus.tasks.inspect.agreement.pairs import is_learned, no_verdict
from gradus.tasks.runtime.calls import Call
from gradus.tasks.runtime.stage_adapter import Session

_ASKED = ("rollout_id", "problem_id", "prompt", "completion")
"""Columns of a rollout that the user reads."""


class _UnlabelledError(Exception):
    """Rows of a round that have no label yet."""

    def __init__(self, rows: pa.Table) -> None:
        super().__init__()
        self.rows = rows


@gradus_flow("bisect")
@form_of(bisect_asked)
def bisect(**given: Any) -> Bisected:
    """Find the round from which an auditor disagrees more often with a run's own verdicts, by few of its verdicts.

    The first and the last round are audited, then the middle of what is between, and so on. An auditor is a reward, or
    a file of labels, to which the rows are added that are to be labelled next. It is a run of its own, `bisect-DIGEST`.
    """
    asked = bisect_asked(**given)
    home = Home.from_environment()
    ready = bisect_ready(home, asked)
    label_flow_run(f"bisect {asked.run}", "bisect")
    body = {
        "auditor": [pinned(each).model_dump(mode="json") for each in ready.auditor] or str(ready.labels),
        "beside": [pinned(each).model_dump(mode="json") for each in ready.beside],
        "rollouts": [[each.run, each.round, str(each.rollouts)] for each in ready.stored],
        "rows": asked.rows,
    }
    name = f"bisect-{json_digest(body)[:8]}"
    with open_session(RunSpec(name=name, verb="bisect", seed=0, body=body)) as session:
        return _Bisecting(session, ready, Store(home.lake), asked.rows).found()


@dataclass(frozen=True)
class BisectReady:
    """A bisection that can begin."""

    stored: Sequence[Stored]
    """Rollouts of the run that are learned from, in the order of their rounds."""
    auditor: Sequence[ScoreConfig]
    """One; none if the user labels."""
    labels: Path | None
    beside: Sequence[ScoreConfig]


def bisect_ready(home: Home, asked: BisectAsked) -> BisectReady:
    """Return rollouts, auditor and cheap rewards; UsageError if there are none, or a reward cannot be used."""
    store = Store(home.lake)
    stored = [each for each in stored_of(home, store, asked.run) if is_learned(each.round, each.purpose)]
    if len({each.round for each in stored}) < 2:
        raise UsageError(f"run {asked.run} has no two rounds that were scored", hint="`gradus runs` lists runs")
    is_file = isinstance(asked.auditor, str) and asked.auditor.endswith(LABELS)
    auditor = [] if is_file else [settings_of(asked.auditor, asked.at)]
    beside = [settings_of(reward, asked.at) for reward in asked.beside]
    check_rewards([*auditor, *beside])
    return BisectReady(stored, auditor, Path(asked.auditor).resolve() if is_file else None, beside)


class _Bisecting:
    def __init__(self, session: Session, ready: BisectReady, store: Store, num_rows: int) -> None:
        self._session = session
        self._ready = ready
        self._store = store
        self._num_rows = num_rows
        self._chosen: dict[int, pa.Table] = {}
        self._labels = read_labels(ready.labels) if ready.labels else {}

    def found(self) -> Bisected:
        """Return the round, or the number of rows that are to be labelled first."""
        rounds = sorted({each.round for each in self._ready.stored})
        labels = str(self._ready.labels) if self._ready.labels else None
        answer: Bisected = {"run": self._ready.stored[0].run, "found": None, "labels": labels, "to_label": 0}
        try:
            # Both ends at once: the user labels them in one go.
            self._refuse_unlabelled(rounds[0], rounds[-1])
            return {**answer, "found": search(rounds, self._audit)}
        except _UnlabelledError as error:
            assert self._ready.labels is not None
            ask_for(self._ready.labels, error.rows.to_pylist())
            return {**answer, "to_label": len(error.rows)}

    def _audit(self, index: int) -> Audited:
        rows = self._rows(index)
        own = bools(rows.column("own"))
        if self._ready.labels:
            self._refuse_unlabelled(index)
            names = rows.column("rollout_id").to_pylist()
            differ = [self._labels[name] is not bool(right) for name, right in zip(names, own, strict=True)]
            return {"round": index, "rows": len(rows), "differ": sum(differ)}
        auditor = self._ready.auditor[0]
        verdict = self._verdicts(auditor, self._subset(rows), self._problems(index), index, "audit")
        known = ~np.isnan(verdict)
        if not known.any():
            raise no_verdict(auditor.rewards[0].short, len(rows))
        return {"round": index, "rows": int(known.sum()), "differ": int(((verdict == 1) != own)[known].sum())}

    def _rows(self, index: int) -> pa.Table:
        """Return the rows of a round that are audited, with the run's own verdict."""
        if index not in self._chosen:
            self._chosen[index] = self._choose(index)
        return self._chosen[index]

    def _choose(self, index: int) -> pa.Table:
        parts = list[pa.Table]()
        for each in (each for each in self._ready.stored if each.round == index):
            assert each.own is not None
            table = self._store.read(each.rollouts)
            scores = self._store.read(each.own, ("rollout_id", "correct"))
            at = positions(table.column("rollout_id"), scores.column("rollout_id"))
            own = take_or_null(scores.column("correct"), at)
            doubted = self._doubted(each, own)
            table = table.append_column("own", own).append_column("doubted", pa.array(doubted))
            parts.append(table.filter(pa.array(~np.isnan(floats(own)))))
        rows = pa.concat_tables(parts, promote_options="default")
        rng = np.random.default_rng(derive_seed(0, "bisect", index))
        return rows.take(
            pa.array(chosen_rows(bools(rows.column("own")), bools(rows.column("doubted")), self._num_rows, rng))
        )

    def _doubted(self, stored: Stored, own: pa.ChunkedArray) -> Bools:
        """Return the rows on which a cheap reward disagrees with the run's own verdict (N,)."""
        right = floats(own)
        found = np.zeros(len(right), np.bool_)
        for number, config in enumerate(self._ready.beside):
            purpose = f"beside-{number + 1}-{stored.purpose}"
            verdict = self._verdicts(config, stored.rollouts, stored.problems, stored.round, purpose)
            found |= ~np.isnan(verdict) & ~np.isnan(right) & (verdict != right)
        return found

    def _verdicts(
        self, config: ScoreConfig, rollouts: Ref, problems: list[Ref], index: int, purpose: str
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        inputs = {"rollouts": [rollouts], "problems": problems}
        scores = self._store.read(
            self._session.stage(Call("score", config, inputs, round=index, purpose=purpose)).ref,
            ("rollout_id", "correct"),
        )
        at = positions(self._store.read(rollouts, ("rollout_id",)).column("rollout_id"), scores.column("rollout_id"))
        return floats(take_or_null(scores.column("correct"), at))

    def _subset(self, rows: pa.Table) -> Ref:
        return self._store.put("rollouts", rows.drop_columns(["own", "doubted"]))

    def _problems(self, index: int) -> list[Ref]:
        return list(dict.fromkeys(ref for each in self._ready.stored if each.round == index for ref in each.problems))

    def _refuse_unlabelled(self, *rounds: int) -> None:
        """Raise _UnlabelledError with the rows of these rounds that have no label, if the user labels."""
        missing = [rows for index in rounds if len(rows := self._unlabelled(index))] if self._ready.labels else []
        if missing:
            raise _UnlabelledError(pa.concat_tables(missing))

    def _unlabelled(self, index: int) -> pa.Table:
        rows = self._rows(index)
        without = [self._labels.get(name) is None for name in rows.column("rollout_id").to_pylist()]
        asked = rows.select([name for name in _ASKED if name in rows.column_names]).filter(
            pa.array(without, pa.bool_())
        )
        problems = pa.concat_tables(
            [self._store.read(ref, ("problem_id", "question", "answer")) for ref in self._problems(index)]
        )
        at = positions(asked.column("problem_id"), problems.column("problem_id"))
        for name in ("question", "answer"):
            asked = asked.append_column(name, take_or_null(problems.column(name), at))
        return asked
