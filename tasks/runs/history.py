"""History of runs, read from their journals: attempts of stages, ends of commands, and the cost of what they computed.

A stage that is reused counts as much as it cost when it was computed, in whichever run: a training costs the same
whether it shares its profile with another or not.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NotRequired

from gradus.data.errors import CorruptArtifactError, OnDamage, UsageError, refuse
from gradus.data.nearest import unique
from gradus.data.runlock import holder
from gradus.tasks.runs.journal import EVENTS, read_events
from gradus.tasks.runs.records import Brief, Counts, Label, StageFinished, StageReused, StageStarted, Summary
from gradus.tasks.runs.run_settings import RUN, read_settings

AGAIN = "run the same command again to resume"
OPEN = ""
"""Status of a run without an end in its journal: running or killed."""

NUM_RUNS = 100
"""Journals read for precedents, newest first."""

Key = tuple[str, int, str]
"""Stage, round, purpose."""


class Attempt(Label):
    """An attempt of a stage, or its reuse, which has no name and took no time."""

    run: str
    attempt: str | None
    """Its name in the journal."""
    start: int
    """Number of the command, of those of the run, that came to the stage."""
    started: float
    seconds: float
    error: str
    status: str
    summary: Summary
    """Counts that the stage reported; empty before it ended, and if it was reused."""
    bytes: NotRequired[int]
    """Of its artifact, where the lake was asked."""
    pruned: NotRequired[str]
    """Day on which files of its artifact were pruned, where the lake was asked; empty if none were."""


def run_folders(runs: Path) -> list[Path]:
    """The folder of every run, newest first."""
    folders = [runs / name for name in run_names(runs)]
    since = {each: (each / RUN if (each / RUN).exists() else each).stat().st_mtime for each in folders}
    return sorted(folders, key=since.__getitem__, reverse=True)


def run_folder(runs: Path, run: str) -> Path:
    """The folder of a run by its name, or by a beginning that no other has; UsageError if that names none."""
    if not run:
        raise UsageError("the name of the run is empty", hint="list them with `gradus runs`")
    return runs / unique(run, run_names(runs), "run", "list them with `gradus runs`")


def run_names(runs: Path) -> list[str]:
    """The names of all runs, in no order; one that lost its settings is among them, since it has a journal."""
    return list({path.parent.name for name in (RUN, EVENTS) for path in runs.glob(f"*/{name}")})


def attempts(folder: Path, on_damage: OnDamage = refuse) -> Iterator[Attempt]:
    """Return the attempts of stages in the order they began, each with how it ended."""
    yield from read_story(folder, on_damage).rows.values()


def last_outputs(folder: Path) -> dict[Key, str]:
    """The last artifact of each call that a run began or reused, calls in the order in which they first came."""
    return {key_of(row): row["output"] for row in attempts(folder)}


def key_of(row: Label) -> Key:
    """Return the key of an attempt's call."""
    return row["stage"], row["round"], row["purpose"]


def brief(folder: Path, on_damage: OnDamage = refuse) -> Brief:
    """Return the summary of a run by its journal: verb, status, beginning, stages, seconds, why it did not finish."""
    story = read_story(folder, on_damage)
    return brief_from(folder, story, counts_of(story), on_damage)


def finished_outputs(rows: Iterable[Attempt]) -> list[str]:
    """The artifacts that must be there: the last attempt that came to each finished or reused it."""
    last = {row["output"]: row["status"] for row in rows}
    return [output for output, status in last.items() if status in ("finished", "reused")]


def missing(output: str, run: str, verb: str) -> CorruptArtifactError:
    """Return the error of an artifact that is gone although the journal of a run has it."""
    return CorruptArtifactError(f"{output} is missing: run {run} made, reused or read it", hint=_again(run, verb))


def of_run(damage: CorruptArtifactError, folder: Path, run: str, verb: str) -> CorruptArtifactError:
    """Return the error of an artifact that is damaged with what to do about it, since it is known which run has it."""
    there = f"delete {folder}, then " if folder.is_dir() else ""
    return CorruptArtifactError(damage.message, hint=f"{there}{_again(run, verb)}")


def _again(run: str, verb: str) -> str:
    command = f"`gradus train {shlex.quote(run)}`" if verb == "train" else f"the same `gradus {verb}` command"
    return f"{command} computes it again"


@dataclass
class Story:
    """A journal as rows of attempts, and how the last command ended."""

    rows: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    started: float | None = None
    status: str = OPEN
    before: str = "finished"
    """End of the command before the last one; finished if there was none."""
    error: str = ""
    pass_at_1: dict[int, float | str | None] = field(default_factory=dict[int, float | str | None])
    """pass@1 of the main suite by round; where an evaluation was reused, its artifact."""
    inputs: dict[str, Mapping[str, list[str]]] = field(default_factory=dict[str, Mapping[str, list[str]]])
    """Inputs, by role, of the last attempt that finished or reused an artifact."""
    ended: dict[str, StageFinished] = field(default_factory=dict[str, StageFinished])
    """The ends of attempts."""

    @property
    def at_work(self) -> list[Attempt]:
        """Attempts that began and did not end."""
        return [row for row in self.rows.values() if row["status"] == "running"]


def read_story(folder: Path, on_damage: OnDamage = refuse) -> Story:
    """Read the journal of a run; attempts of a process that is gone are killed."""
    story = read_open(folder, on_damage)
    if story.at_work and holder(folder) is None:
        _kill(story.rows)
    return story


def read_open(folder: Path, on_damage: OnDamage) -> Story:
    """Read the journal of a run; attempts that have no end are still running."""
    story, start, inputs = Story(), 0, dict[str, Mapping[str, list[str]]]()
    for event in read_events(folder, on_damage):
        match event["event"]:
            case "run_started":
                _kill(story.rows)
                story.before = story.status if start else story.before
                start += 1
                story.started = event.get("time") if story.started is None else story.started
                story.status, story.error = OPEN, ""
            case "run_finished":
                _kill(story.rows)
                story.status, story.error = event["status"], event.get("error", "")
            case "stage_started":
                story.rows[event["attempt"]] = _begun(folder.name, event, start, "running")
                inputs[event["attempt"]] = event.get("inputs", {})
            case "stage_finished":
                if event["attempt"] in story.rows:  # its beginning may have been moved out of the journal
                    _end(story, event, inputs[event["attempt"]])
            case "stage_reused":
                story.rows[f"reused-{len(story.rows)}"] = _begun(folder.name, event, start, "reused")
                given = event.get("inputs", story.inputs.get(event["output"], {}))
                story.inputs[event["output"]] = given
                if is_main_evaluation(event):
                    story.pass_at_1[event["round"]] = event["output"]
            case _:
                continue
    return story


def _end(story: Story, event: StageFinished, inputs: Mapping[str, list[str]]) -> None:
    row, story.ended[event["attempt"]] = story.rows[event["attempt"]], event
    row["status"], row["seconds"], row["error"] = event["status"], round(event["seconds"], 3), event.get("error", "")
    row["summary"] = event.get("summary", {})
    if row["status"] == "finished":
        story.inputs[row["output"]] = inputs
        if is_main_evaluation(row):
            story.pass_at_1[row["round"]] = pass_at_1_of(event.get("summary", {}))


def is_main_evaluation(row: Label) -> bool:
    """Return whether a stage evaluates on the suite of the run's main figure; others are for `eval-NAME`."""
    return row["stage"] == "evaluate" and row["purpose"] == "eval"


def pass_at_1_of(summary: Mapping[str, object]) -> float | None:
    """pass@1 of an evaluation; None without verdicts, or if another version wrote something else there."""
    found: object = summary
    for key in ("pass_at", "1", "value"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return float(found) if isinstance(found, int | float) else None


def _kill(rows: Mapping[str, Attempt]) -> None:
    """Attempts that did not end before their command did were killed with it."""
    for row in rows.values():
        if row["status"] == "running":
            row["status"] = "killed"


def _begun(run: str, event: StageStarted | StageReused, start: int, status: str) -> Attempt:
    return {
        "stage": event["stage"],
        "round": event["round"],
        "purpose": event["purpose"],
        "output": event["output"],
        "run": run,
        "attempt": event.get("attempt"),
        "start": start,
        "started": event["time"],
        "seconds": 0.0,
        "error": "",
        "status": status,
        "summary": {},
    }


def counts_of(story: Story) -> Counts:
    """Return the counts of a journal."""
    rows = story.rows.values()
    reused = sum(row["status"] == "reused" for row in rows)
    seconds = round(sum(row["seconds"] for row in rows), 1)
    return {"started": story.started, "stages": len(rows) - reused, "reused": reused, "seconds": seconds}


def brief_from(folder: Path, story: Story, counts: Counts, on_damage: OnDamage) -> Brief:
    """Return the summary of a run by the end of its journal and its counts."""
    status, error = story.status, story.error
    if status == OPEN and holder(folder) is not None:
        status, error = "running", ""
    elif status == OPEN:
        during = " and ".join(f"{row['stage']} of round {row['round']}" for row in story.at_work)
        status, error = "killed", f"the process was killed{f' during {during}' if during else ''}; {AGAIN}"
    verb = read_settings(folder, on_damage)["verb"]
    return {
        "run": folder.name,
        "status": status,
        "error": error,
        "verb": verb,
        "started": counts["started"],
        "stages": counts["stages"],
        "reused": counts["reused"],
        "seconds": counts["seconds"],
    }


def of_call(found: Sequence[Attempt], key: Key) -> list[Attempt]:
    """Return the attempts of the same stage, round and purpose."""
    return [each for each in found if key_of(each) == key]


def alike(found: Sequence[Attempt], key: Key) -> list[Attempt]:
    """Return those most like a call: of its round and purpose if there are any, else of its purpose, else all."""
    stage, _, purpose = key
    same_stage = [each for each in found if each["stage"] == stage]
    same_purpose = [each for each in same_stage if each["purpose"] == purpose]
    return of_call(found, key) or same_purpose or same_stage


def precedents(runs: Path, prefer: str = "") -> list[Attempt]:
    """Return every attempt that ended well, newest first; those of runs whose name begins with `prefer` come first."""
    folders = run_folders(runs)[:NUM_RUNS]
    folders.sort(key=lambda folder: not folder.name.startswith(prefer))
    return [each for folder in folders for each in reversed(_finished(folder, refuse))]


def _finished(folder: Path, on_damage: OnDamage) -> list[Attempt]:
    """Return the attempts of a run that ended well, in the order they began."""
    return [row for row in attempts(folder, on_damage) if row["status"] == "finished"]


@dataclass(frozen=True)
class ComputedSeconds:
    """Seconds that artifacts took to compute, by the journals of all runs; each is read once, when one is asked for."""

    runs: Path
    on_damage: OnDamage = refuse

    def of(self, output: str) -> float:
        """Return the seconds of an artifact; 0 if no journal has it."""
        return self._seconds.get(output, 0.0)

    @cached_property
    def _seconds(self) -> Mapping[str, float]:
        found = (each for folder in run_folders(self.runs) for each in _finished(folder, self.on_damage))
        return {each["output"]: each["seconds"] for each in found}


def is_evaluation(purpose: str) -> bool:
    """Return whether a stage serves an evaluation: `eval` of the main suite, `eval-NAME` of the others."""
    return purpose == "eval" or purpose.startswith("eval-")


def is_learned(purpose: str) -> bool:
    """Return whether a stage serves what a round learns from: neither an evaluation nor profiling."""
    return not is_evaluation(purpose) and purpose != "profile"


def sampled_tokens(stage: str, summary: Summary) -> int:
    """Return the completion tokens of a stage by its report: those of a rollout, whatever became of them.

    Texts that were given are not among them.
    """
    return int(summary.get("tokens", 0) - summary.get("given_tokens", 0)) if stage == "rollout" else 0
