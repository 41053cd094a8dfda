"""`agree` and `bisect`, as Prefect flows: rewards on the same stored rollouts, without a token sampled.

`agree` has one stage `score` a reward and artifact. The auditor of `bisect` is a reward, or the user, whose labels are
lines of a file; the audited rows of a round are an artifact of their own, so the same command judges nothing again.
"""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, bools, floats, looked_up, positions, take_or_null
from gradus.data.files import replace_file
from gradus.data.lake.manifest import json_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.seeds import derive_seed
from gradus.flows.agreement.asked import AgreeAsked, BisectAsked
from gradus.flows.agreement.ready import AgreeReady, BisectReady, agree_ready, bisect_ready
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import form_of, gradus_flow
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.identity.pins import pinned
from gradus.tasks.inspect.agreement.labels import ask_for, read_labels
from gradus.tasks.inspect.agreement.numbers import Audited, Bisected, chosen_rows, search
from gradus.tasks.inspect.agreement.pairs import Agreement, Judged, agreement, no_verdict
from gradus.tasks.runtime.calls import Call
from gradus.tasks.runtime.stage_adapter import Session
from gradus.tasks.tracking.facts import AGREEMENT

_ASKED = ("rollout_id", "problem_id", "prompt", "completion")
"""Columns of a rollout that the user reads."""


@gradus_flow("agree")
@form_of(AgreeAsked, rewards=list[RewardConfig])
def agree(**given: Any) -> Agreement:
    """Judge stored rollouts by several rewards, and return where their verdicts differ; nothing is sampled.

    Agreement and Cohen's kappa with its interval by run, round, purpose, domain, source and length; rows on which they
    disagree; by round the groups whose advantages differ, and the first round whose update would. It is a run of its
    own, `agree-DIGEST`.
    """
    asked = AgreeAsked(**given)
    ready = agree_ready(Home.from_environment(), asked)
    label_flow_run(f"agree {', '.join(ready.names)}", "agree")
    body = {  # the same rewards on the same rollouts are the same run
        "names": [*ready.names],
        "rewards": [pinned(each).model_dump(mode="json") for each in ready.settings],
        "rollouts": [[each.run, str(each.rollouts), *map(str, each.problems)] for each in ready.stored],
    }
    name = f"agree-{json_digest(body)[:8]}"
    with open_session(RunSpec(name=name, verb="agree", seed=0, body=body)) as session:
        found = agreement(session.store, name, ready.names, _judged(session, ready))
        replace_file(session.journal.folder / AGREEMENT, json.dumps(found, indent=1))
    return found


def _judged(session: Session, ready: AgreeReady) -> list[Judged]:
    """Score every artifact by every reward; the run's own scores are there."""
    found, runs = list[Judged](), list(dict.fromkeys(each.run for each in ready.stored))
    with_own = len(ready.names) > len(ready.settings)
    for each in ready.stored:
        of_run = f"-{runs.index(each.run) + 1}" if len(runs) > 1 else ""
        scores = [*each.scores] if with_own else []
        for name, config in zip(ready.names[with_own:], ready.settings, strict=True):
            scores.append(_scored(session, config, each, f"{name}-{each.purpose}{of_run}"))
        found.append(replace(each, scores=scores))
    return found


def _scored(session: Session, config: ScoreConfig, judged: Judged, purpose: str) -> Ref:
    """Return the scores of an artifact by other rewards."""
    inputs = {"rollouts": [judged.rollouts], "problems": judged.problems}
    return session.stage(Call("score", config, inputs, round=judged.round, purpose=purpose)).ref


class _UnlabelledError(Exception):
    """Rows of a round that have no label yet."""

    def __init__(self, rows: pa.Table) -> None:
        super().__init__()
        self.rows = rows


@gradus_flow("bisect")
@form_of(BisectAsked)
def bisect(**given: Any) -> Bisected:
    """Find the round from which an auditor disagrees more often with a run's own verdicts, by few of its verdicts.

    The first and the last round are audited, then the middle of what is between, and so on. An auditor is a reward, or
    a file of labels, to which the rows are added that are to be labelled next. It is a run of its own, `bisect-DIGEST`.
    """
    asked = BisectAsked(**given)
    ready = bisect_ready(Home.from_environment(), asked)
    label_flow_run(f"bisect {asked.run}", "bisect")
    body = {
        "auditor": [pinned(each).model_dump(mode="json") for each in ready.auditor] or str(ready.labels),
        "beside": [pinned(each).model_dump(mode="json") for each in ready.beside],
        "rollouts": [[each.run, each.round, str(each.rollouts)] for each in ready.stored],
        "rows": asked.rows,
    }
    name = f"bisect-{json_digest(body)[:8]}"
    with open_session(RunSpec(name=name, verb="bisect", seed=0, body=body)) as session:
        return _Bisecting(session, ready, asked.rows).found()


class _Bisecting:
    def __init__(self, session: Session, ready: BisectReady, num_rows: int) -> None:
        self._session = session
        self._ready = ready
        self._store = session.store
        self._num_rows = num_rows
        self._rows = cache(self._chosen)
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
        subset = self._store.put("rollouts", rows.drop_columns(["own", "doubted"]))
        drawn = Judged(self._ready.stored[0].run, index, "audit", subset, self._problems(index), [])
        verdict = self._verdicts(auditor, drawn, "audit")
        known = ~np.isnan(verdict)
        if not known.any():
            raise no_verdict(auditor.rewards[0].short, len(rows))
        return {"round": index, "rows": int(known.sum()), "differ": int(((verdict == 1) != own)[known].sum())}

    def _chosen(self, index: int) -> pa.Table:
        """Return the rows of a round that are audited, with the run's own verdict."""
        parts = list[pa.Table]()
        for each in (each for each in self._ready.stored if each.round == index):
            table = self._store.read(each.rollouts)
            own = _correct(self._store, each.scores[0], table)
            doubted = self._doubted(each, floats(own))
            table = table.append_column("own", own).append_column("doubted", pa.array(doubted))
            parts.append(table.filter(own.is_valid()))
        rows = pa.concat_tables(parts, promote_options="default")
        rng = np.random.default_rng(derive_seed(0, "bisect", index))
        right, doubted = (bools(rows.column(name)) for name in ("own", "doubted"))
        return rows.take(pa.array(chosen_rows(right, doubted, self._num_rows, rng)))

    def _doubted(self, stored: Judged, right: Floats) -> Bools:
        """Return the rows (N,) on which a cheap reward disagrees with the run's own verdict, NaN for none."""
        found = np.zeros(len(right), np.bool_)
        for number, config in enumerate(self._ready.beside):
            verdict = self._verdicts(config, stored, f"beside-{number + 1}-{stored.purpose}")
            found |= ~np.isnan(verdict) & ~np.isnan(right) & (verdict != right)
        return found

    def _verdicts(self, config: ScoreConfig, judged: Judged, purpose: str) -> Floats:
        scored = _scored(self._session, config, judged, purpose)
        return floats(_correct(self._store, scored, self._store.read(judged.rollouts, ("rollout_id",))))

    def _problems(self, index: int) -> list[Ref]:
        return list(dict.fromkeys(ref for each in self._ready.stored if each.round == index for ref in each.problems))

    def _refuse_unlabelled(self, *rounds: int) -> None:
        missing = [rows for index in rounds if len(rows := self._unlabelled(index))] if self._ready.labels else []
        if missing:
            raise _UnlabelledError(pa.concat_tables(missing))

    def _unlabelled(self, index: int) -> pa.Table:
        rows = self._rows(index)
        without = [self._labels.get(name) is None for name in rows.column("rollout_id").to_pylist()]
        rows = rows.filter(pa.array(without, pa.bool_()))
        asked = rows.select([name for name in _ASKED if name in rows.column_names])
        columns = ("problem_id", "question", "answer")
        problems = pa.concat_tables([self._store.read(ref, columns) for ref in self._problems(index)])
        return looked_up(asked, "problem_id", problems, columns[1:])


def _correct(store: Store, scores: Ref, rows: pa.Table) -> pa.Array:
    """Return the verdicts of scores on rollouts (N,), null without one."""
    judged = store.read(scores, ("rollout_id", "correct"))
    return take_or_null(judged.column("correct"), positions(rows.column("rollout_id"), judged.column("rollout_id")))
