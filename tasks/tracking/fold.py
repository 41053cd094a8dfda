"""A run's journal as a fold: everything that the reporter needs to know of the events before the one that it sends.

It is in memory alone and computed anew from the first event, so it cannot disagree with the journal. Does not import
MLflow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gradus.tasks.runs import records
from gradus.tasks.tracking.metric_table import Mark, is_marked
from gradus.tasks.tracking.names import has_room, is_on_run, kind_of, run_metric_name, shown_name

Point: TypeAlias = tuple[str, float, int, int]
"""A metric's name, its value, its time in ms and its step."""
NOT_FINITE = "total/num_not_finite"
_FIGURES = ("pass_at_1", "gain", "gain_ci_low", "gain_ci_high")


def in_ms(seconds: float) -> int:
    """Return a time in MLflow's unit."""
    return int(seconds * 1000)


@dataclass
class Fold:
    """A run up to an event of its journal."""

    traces_per_round: int = 0
    first: str = ""
    """Name of the first invocation: that of the run's row in MLflow."""
    started: records.RunStarted | None = None
    """Beginning of the last command; None before the first."""
    is_open: bool = False
    time_s: float = 0.0
    live: dict[str, records.StageStarted] = field(default_factory=dict[str, records.StageStarted])
    """Attempts of the open command that have not ended."""
    totals: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=lambda: {"ran": 0, "reused": 0, "failed": 0})
    """Stages of all commands; a reuse counts unless the run had the artifact before."""
    seconds: float = 0.0
    """Duration of all commands."""
    figures: dict[str, float] = field(default_factory=dict[str, float])
    """Results of the evaluations of the first suite."""
    note: str = ""
    """Note of the last command that computed something."""
    reuses: int = 0
    """Commands since then that computed nothing."""
    measured: set[str] = field(default_factory=set[str])
    """Calls that earlier commands measured: an artifact measures the same whenever it is reused."""
    _ended: set[str] = field(default_factory=set[str])
    _had: set[str] = field(default_factory=set[str])
    _kinds: set[str] = field(default_factory=set[str])
    _traces: dict[int, int] = field(default_factory=dict[int, int])
    _zeros: dict[str, list[tuple[int, int]]] = field(default_factory=dict[str, list[tuple[int, int]]])
    _loud: set[str] = field(default_factory=set[str])
    _others: list[str] = field(default_factory=list[str])

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.started["run"] if self.started else ""

    @property
    def owner(self) -> records.Owner:
        """Process of the open command; empty if none is open."""
        return self.started["owner"] if self.started and self.is_open else {}

    @property
    def num_rounds(self) -> int:
        """Last round that has an update."""
        return int(self.totals.get("total/rounds", 0))

    @property
    def only_reused(self) -> bool:
        """Return whether the open command computed nothing that an earlier one had not: it is worth a remark alone."""
        return bool(self.note) and "stage_started" not in self._kinds and "stage_reused" in self._kinds

    def begin(self, event: records.RunStarted) -> None:
        """A command begins; it continues in the row of the run's first one."""
        self.first = self.first or event["invocation"]
        self.started, self.is_open = event, True
        self.live, self.measured, self._kinds = {}, set(self._ended), set()

    def see(self, event: records.Event) -> None:
        """Note an event of the open command."""
        self.time_s = event["time"]
        self._kinds.add(event["event"])
        if event["event"] == "stage_started":
            self.live[event["attempt"]] = event
            self._had.add(event["output"])

    def finished(self, call: records.StageStarted, event: records.StageFinished, report: records.Report) -> list[Point]:
        """An attempt ended; return its points among those of the whole run."""
        del self.live[event["attempt"]]
        metrics, summary, clock = report.get("metrics", {}), event["summary"], event.get("clock", {})
        self.counts["ran" if event["status"] == "finished" else "failed"] += 1
        self._count_not_finite(metrics, *report.get("steps", ()))
        self._count_usage(summary, clock or metrics)
        if event["status"] != "finished":
            return []
        self._ended.add(named(call))
        self._count_round(call)
        return [] if named(call) in self.measured else self.points(call, event["time"], metrics)

    def reused(self, call: records.Label, time_s: float, report: records.Report) -> list[Point]:
        """A stage was reused; return its points among those of the run, unless an earlier command measured it."""
        self._ended.add(named(call))
        self.counts["reused"] += call["output"] not in self._had
        self._had.add(call["output"])
        if named(call) in self.measured:
            return []
        metrics = report.get("metrics", {})
        self._count_not_finite(metrics)
        self._count_round(call)
        return self.points(call, time_s, metrics)

    def chosen(self, call: records.Label, samples: Sequence[records.Sample]) -> Sequence[records.Sample]:
        """Return as many samples of a score, half from the front and half from the back, as its round has left."""
        done = self._traces.get(call["round"], 0)
        found = ends(samples, max(0, self.traces_per_round - done))
        self._traces[call["round"]] = done + len(found)
        return found

    def points(self, call: records.Label, time_s: float, metrics: records.Metrics) -> list[Point]:
        """Return those of a stage's metrics that are shown on the whole run, at the step of its round."""
        found: list[Point] = []
        for name, value in metrics.items():
            if math.isfinite(value) and is_on_run(call["stage"], call["purpose"], name):
                spelled = run_metric_name(call["stage"], call["purpose"], name)
                if has_room(spelled, self._others):
                    step = 0 if self._ends_only and is_marked(name, Mark.COMPARES) else call["round"]
                    found += self._said(name, (spelled, value, in_ms(time_s), step))
        if call["stage"] == "evaluate" and kind_of(call["purpose"], "eval/") == "eval":
            self._note_figures(metrics)
        return found

    def _said(self, name: str, point: Point) -> list[Point]:
        """Return a point; zeros of quiet metrics are held back until the first non-zero value."""
        spelled, value, time_ms, step = point
        if not is_marked(name, Mark.QUIET) or spelled in self._loud:
            return [point]
        if value == 0:
            self._zeros.setdefault(spelled, []).append((time_ms, step))
            return []
        self._loud.add(spelled)
        return [*((spelled, 0.0, *each) for each in self._zeros.pop(spelled, ())), point]

    def end(self, event: records.RunFinished) -> None:
        """The command ended."""
        self.is_open = False
        if self.only_reused:
            self.reuses += 1
        elif self.started:
            self.seconds += max(0.0, event["time"] - self.started["time"])

    def total_points(self, prices: tuple[float, float], time_s: float) -> list[Point]:
        """Return the totals of a run, and their cost if there are prices of an hour; one that is 0 is left out."""
        used, (cpu_h, gpu_h) = self.totals, prices
        cost = (used.get("total/cpu_s", 0.0) * cpu_h + used.get("total/gpu_s", 0.0) * gpu_h) / 3600
        known = {name: float(f"{value:.6g}") for name, value in {**used, "total/cost": cost}.items()}
        return [(shown_name(name), value, in_ms(time_s), 0) for name, value in known.items() if value]

    @property
    def _ends_only(self) -> bool:
        """Return whether the recipe evaluates only before the first round and after the last."""
        found: Any = self.started.get("params", {}) if self.started else {}
        for key in ("recipe", "evaluate", "suites"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return bool(found) and not any(suite.get("every") for suite in found)

    def _note_figures(self, metrics: records.Metrics) -> None:
        """Keep the results of an evaluation of the first suite; the first one is that of the starting policy."""
        found = {name.rpartition("/")[2]: value for name, value in metrics.items()}
        if "pass_at_1" in found:
            self.figures.setdefault("start", found["pass_at_1"])
        self.figures |= {name: found[name] for name in _FIGURES if name in found}

    def _count_not_finite(self, *metrics: records.Metrics) -> None:
        """Count values that are NaN or infinite: MLflow would refuse them, or show them as huge."""
        self._add(NOT_FINITE, sum(not math.isfinite(value) for each in metrics for value in each.values()))

    def _count_usage(self, summary: records.Summary, times: records.Metrics) -> None:
        self._add("total/tokens_sampled", summary.get("tokens_generated", 0))
        self._add("total/tokens_trained", summary.get("tokens_trained", 0))
        self._add("total/skipped_updates", summary.get("skipped_updates", 0))
        self._add("total/cpu_s", times.get("perf/cpu_s", 0.0))
        self._add("total/gpu_s", times.get("perf/gpu_s", 0.0))

    def _count_round(self, call: records.Label) -> None:
        if call["stage"] == "update":
            self.totals["total/rounds"] = max(call["round"], self.num_rounds)

    def _add(self, name: str, amount: float) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + amount


def named(call: records.Label) -> str:
    """Return the name of a call with its artifact."""
    return f"{call['stage']} {call['round']} {call['purpose']} {call['output']}"


def ends(samples: Sequence[records.Sample], count: int) -> Sequence[records.Sample]:
    """Return N samples: half from the front (the best), half from the back (the worst)."""
    if count >= len(samples):
        return samples
    front = count - count // 2
    return [*samples[:front], *samples[len(samples) - (count - front) :]]
