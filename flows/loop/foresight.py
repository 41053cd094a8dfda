"""Forecast of a training: the same loop on a session that looks instead of computing. Does not import Prefect.

Stages that are light, and whose inputs are there, are computed into a folder that is removed afterwards, so that plans
are exact as far as they do not depend on rollouts that are still to be made, or on code of the user's: that is read and
not run.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from gradus.components.chosen import chosen_in
from gradus.data.errors import GradusError
from gradus.data.lake.store import Ref
from gradus.flows.console.answers import ForeseenCall
from gradus.tasks.artifacts.ahead import Overlay
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity.pins import pinned
from gradus.tasks.inspect.reasons import reason
from gradus.tasks.inspect.remarks import remarks_of
from gradus.tasks.runs.history import Attempt, alike, of_call
from gradus.tasks.runs.records import Report, Summary
from gradus.tasks.runtime.calls import Call, Job, Outcome, computed, planned
from gradus.tasks.stages.context import read_report
from gradus.tasks.stages.registry import stage_spec

REUSED, COMPUTED = "reused", "computed"
ASKED_FOR = "forced; if the result differs, all that depends on it is computed too"


@dataclass
class Foresight:
    """Session of a dry run: finds existing artifacts, and notes the stages that would be computed."""

    store: Overlay
    seed: int
    known: Sequence[Attempt]
    forced: frozenset[tuple[str, int, str]] = frozenset()
    calls: list[ForeseenCall] = field(default_factory=list[ForeseenCall])
    remarks: list[str] = field(default_factory=list[str])
    asked: dict[tuple[str, int, str], Call] = field(default_factory=dict[tuple[str, int, str], Call])
    """The last call of each stage, round and purpose, reused or not."""
    _pending: dict[Ref, str] = field(default_factory=dict[Ref, str])
    """Artifacts that are not there, and would not be computed here, with the label of the stage that makes them."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def stage(self, call: Call) -> Outcome:
        """Note one stage and return its outcome, as it is in the lake or as it is likely to be."""
        call = replace(call, config=pinned(call.config))
        with self._lock:  # of the two threads of a run that overlaps
            self.asked[call.key] = call
            forced = call.key in self.forced
            job = planned(self.store, call, run="", seed=self.seed, forced=forced, content_key=self._content_key)
            ref = Ref.parse(job.output)
            report = None if forced or self._waits_for(call) else self._finished(call, ref)
            if report is not None:
                self.calls.append(_foreseen(call, REUSED))
                return Outcome(call.name, call.purpose, call.round, ref, reused=True, seconds=0.0, report=report)
            return self._to_compute(call, job, ref)

    def there(self, ref: Ref) -> bool:
        """Return whether an artifact is in the lake, or was computed here."""
        return ref not in self._pending and self.store.find(ref) is not None

    def halt(self) -> None:
        """Do nothing: no stage is running."""

    def say(self, text: str) -> None:
        """Keep a sentence for the answer."""
        self.remarks.append(text.removeprefix("note: "))

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None:
        """Do nothing: a dry run removes no file."""

    def _content_key(self, ref: Ref, columns: Sequence[str] | None) -> str:
        return self._pending.get(ref) or self.store.content_key(ref, columns)

    def _waits_for(self, call: Call) -> dict[str, str]:
        """Inputs that would be computed first: role -> label of the stage that makes it."""
        return {role: self._pending[ref] for role, refs in call.inputs.items() for ref in refs if ref in self._pending}

    def _finished(self, call: Call, ref: Ref) -> Report | None:
        """Return the report of a finished artifact; remark on a limit that it breaches."""
        if self.store.find(ref) is None:
            return None
        report = read_report(self.store, ref)
        if sentence := stage_spec(call.name).breach(report, call.config):
            self.remarks.append(f"{call.label} exists, and ends the run: {sentence}")
        return report

    def _to_compute(self, call: Call, job: Job, ref: Ref) -> Outcome:
        waits = self._waits_for(call)
        before = alike(self.known, call.key)
        report: Report | None = None
        if not waits:  # what depends on a forced artifact is assumed to stay the same
            again = call.key in self.forced and self.store.find(ref) is not None
            report = read_report(self.store, ref) if again else self._light(call, job)
        if report is not None:
            found = remarks_of(call.name, call.purpose, report.get("summary", {}))
            self.remarks += [text for text in found if text not in self.remarks]
        else:
            self._pending[ref] = call.label
            report = {"summary": self._expected(call, before)}
        self.calls.append(self._costs(call, self._why(call, job, waits), before))
        return Outcome(call.name, call.purpose, call.round, ref, reused=False, seconds=0.0, report=report)

    def _why(self, call: Call, job: Job, waits: Mapping[str, str]) -> str:
        if waits:
            return "; ".join(f"its {role} is computed anew ({label})" for role, label in waits.items())
        if call.key in self.forced:
            return ASKED_FOR
        return reason(self.store, job.identity, job.inputs, of_call(self.known, call.key))

    def _light(self, call: Call, job: Job) -> Report | None:
        """Compute a light stage beside the lake and return its report; None if it needs a worker or a user's code."""
        spec = stage_spec(call.name)
        is_far = call.name == "ingest" and not Path(str(call.facts["source"])).exists()  # nothing is fetched
        if spec.worker or spec.distribution or call.name == "evaluate" or is_far:
            return None
        if any(chosen.is_users for chosen in chosen_in(call.config)):
            return None
        try:
            return computed(job, self.store, Warm(), lambda frac, text="": None)  # noqa: ARG005 - progress is not shown
        except GradusError as error:
            if call.name == "ingest":  # an unusable file: nothing after it is known
                raise
            self.remarks.append(f"{call.label} would fail: {error}")
            return None

    def _expected(self, call: Call, before: list[Attempt]) -> Summary:
        """Return the counts of the nearest stage that was computed, as an estimate."""
        expected: dict[str, object] = {"groups": 0}
        if before:
            expected = {**before[0]["summary"]}
            expected.pop("skipped_updates", None)  # whether rewards will vary is not known
        elif call.name == "evaluate":
            expected = {"suite": call.purpose, "judged": 0, "rollouts": 0, "pass_at": {"1": {"value": 0.0}}}
        return cast("Summary", expected)

    def _costs(self, call: Call, why: str, before: list[Attempt]) -> ForeseenCall:
        """Return the call with its estimated cost, in proportion to its rollouts if their number is known."""
        measured = before[0] if before else None
        there = int(measured["summary"].get("rows", 0)) if measured and call.name == "rollout" else 0
        plans = [ref for ref in call.inputs.get("plan", ()) if call.name == "rollout" and ref not in self._pending]
        rollouts = sum(sum(self.store.read(ref, ["n"]).column("n").to_pylist()) for ref in plans) or there or None
        scale = rollouts / there if rollouts and there else 1.0
        tokens = round(scale * measured["summary"].get("tokens", 0)) if measured and there else None
        seconds = scale * measured["seconds"] if measured else None
        return {**_foreseen(call, COMPUTED, why), "rollouts": rollouts, "tokens": tokens, "seconds": seconds}


def _foreseen(call: Call, what: str, why: str = "") -> ForeseenCall:
    return {
        "stage": call.name,
        "round": call.round,
        "purpose": call.purpose,
        "what": what,
        "why": why,
        "rollouts": None,
        "tokens": None,
        "seconds": None,
    }
