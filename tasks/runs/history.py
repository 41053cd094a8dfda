"""History of runs, read from their journals."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from gradus.data.errors import CorruptArtifactError, OnDamage, UsageError, refuse
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.nearest import unique
from gradus.data.runlock import holder
from gradus.tasks.runs.journal import EVENTS, RUN, read_events, read_settings
from gradus.tasks.runs.records import Account, Brief, Label, RunSettings, StageFinished, StageReused, StageStarted
from gradus.tasks.runs.run_cache import Facts, KeptFacts, Sizes, keep, proof_of, recall

AGAIN = "run the same command again to resume"
OPEN = ""
"""Status of a run without an end in its journal: running or killed."""


class Attempt(Label):
    """An attempt of a stage, or its reuse, which has no name."""

    attempt: str | None
    start: int
    started: float
    seconds: float
    error: str
    status: str


class Listed(Brief):
    """A run with its gain in pass@1 and the bytes of its artifacts."""

    gain: float | None
    bytes: int


class RunList(TypedDict):
    """Every run, and the bytes of all artifacts."""

    runs: list[Listed]
    bytes: int
    bytes_by_table: dict[str, int]


class SizedAttempt(Attempt):
    """An attempt with the bytes of its artifact, and the day on which files of it were pruned; empty if none were."""

    bytes: int
    pruned: str


class RunStory(Listed):
    """A run with everything that it did."""

    bytes_by_table: dict[str, int]
    attempts: list[SizedAttempt]
    resumed: list[Account]
    """The prompts so far, kept and sampled again, each time that the run went on."""
    logs: str
    settings: RunSettings


def list_runs(runs: Path, lake: Path, on_damage: OnDamage = refuse) -> RunList:
    """Every run, newest first: what `brief` says of it, its gain and bytes; and the bytes of all artifacts by table.

    An artifact that several runs have counts in each of them, and once in the sums.
    """
    sizes, outputs = Sizes(lake), dict[str, int]()
    listed: list[Listed] = []
    for folder in run_folders(runs):
        run, made = _listed(folder, sizes, on_damage)
        listed.append(run)
        outputs.update(made)
    return {"runs": listed, "bytes": sum(outputs.values()), "bytes_by_table": _by_table(outputs)}


def _by_table(outputs: Mapping[str, int]) -> dict[str, int]:
    """Bytes of artifacts by table, the largest first."""
    found: dict[str, int] = {}
    for ref, num_bytes in outputs.items():
        table = ref.partition("/")[0]
        found[table] = found.get(table, 0) + num_bytes
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def run_folders(runs: Path) -> list[Path]:
    """The folder of every run, newest first."""
    return sorted((runs / name for name in run_names(runs)), key=_age, reverse=True)


def read_run(runs: Path, run: str, lake: Path, on_damage: OnDamage = refuse) -> RunStory:
    """One run: what `list_runs` says of it, every stage attempt with the bytes of its artifact, and its settings."""
    folder = run_folder(runs, run)
    listed, outputs = _listed(folder, Sizes(lake), on_damage)
    store = Store(lake)
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


def run_folder(runs: Path, run: str) -> Path:
    """The folder of a run by its name, or by a beginning that no other has; UsageError if that names none."""
    if not run:
        raise UsageError("the name of the run is empty", hint="list them with `gradus runs`")
    return runs / unique(run, run_names(runs), "run", "list them with `gradus runs`")


def run_names(runs: Path) -> list[str]:
    """The names of all runs, in no order; one that lost its settings is among them, since it has a journal."""
    return list({path.parent.name for name in (RUN, EVENTS) for path in runs.glob(f"*/{name}")})


def attempts(folder: Path, on_damage: OnDamage = refuse) -> Iterator[Attempt]:
    """Stage attempts in the order they began, each with how it ended.

    `attempt` is the name that the journal's metrics have, null where a stage was reused; `start` is the number of the
    command, of those that were given for the run, that came to the stage.
    """
    yield from read_story(folder, on_damage).rows.values()


def brief(folder: Path, on_damage: OnDamage = refuse) -> Brief:
    """Return the summary of a run by its journal: verb, status, beginning, stages, seconds, why it did not finish."""
    return brief_of(folder, read_story(folder, on_damage), on_damage)


def brief_of(folder: Path, story: "Story", on_damage: OnDamage = refuse) -> Brief:
    """Return the summary of a run from a journal that was read."""
    return _standing(folder, _facts(folder, story, on_damage))


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
    command = f"`gradus train {run}`" if verb == "train" else f"the same `gradus {verb}` command"
    return f"{command} computes it again"


@dataclass
class Story:
    """A journal as rows of attempts, and how the last command ended."""

    rows: dict[str, Attempt] = field(default_factory=dict[str, Attempt])
    started: float | None = None
    status: str = OPEN
    error: str = ""
    pass_at_1: dict[int, float | str | None] = field(default_factory=dict[int, float | str | None])
    """pass@1 of the main suite by round; where an evaluation was reused, its artifact."""
    inputs: dict[str, Mapping[str, list[str]]] = field(default_factory=dict[str, Mapping[str, list[str]]])
    """Inputs, by role, of the last attempt that finished or reused an artifact."""

    @property
    def at_work(self) -> list[Attempt]:
        """Attempts that began and did not end."""
        return [row for row in self.rows.values() if row["status"] == "running"]


def read_story(folder: Path, on_damage: OnDamage = refuse) -> Story:
    """Read the journal of a run; attempts of a process that is gone are killed."""
    story = _read(folder, on_damage)
    if story.at_work and holder(folder) is None:
        _kill(story.rows)
    return story


def _read(folder: Path, on_damage: OnDamage) -> Story:
    story, start, inputs = Story(), 0, dict[str, Mapping[str, list[str]]]()
    for event in read_events(folder, on_damage):
        match event["event"]:
            case "run_started":
                _kill(story.rows)
                start += 1
                story.started = event.get("time") if story.started is None else story.started
                story.status, story.error = OPEN, ""
            case "run_finished":
                _kill(story.rows)
                story.status, story.error = event["status"], event.get("error", "")
            case "stage_started":
                story.rows[event["attempt"]] = _begun(event, start, "running")
                inputs[event["attempt"]] = event.get("inputs", {})
            case "stage_finished":
                if event["attempt"] in story.rows:  # its beginning may have been moved out of the journal
                    row = story.rows[event["attempt"]]
                    _end(story, row, event)
                    if row["status"] == "finished":
                        story.inputs[row["output"]] = inputs[event["attempt"]]
            case "stage_reused":
                story.rows[f"reused-{len(story.rows)}"] = _begun(event, start, "reused")
                given = event.get("inputs", story.inputs.get(event["output"], {}))
                story.inputs[event["output"]] = given
                if _is_main_evaluation(event):
                    story.pass_at_1[event["round"]] = event["output"]
            case _:
                continue
    return story


def _end(story: Story, row: Attempt, event: StageFinished) -> None:
    row["status"], row["seconds"], row["error"] = event["status"], round(event["seconds"], 3), event.get("error", "")
    if _is_main_evaluation(row) and event["status"] == "finished":
        story.pass_at_1[row["round"]] = _pass_at_1(event.get("summary", {}))


def _is_main_evaluation(row: Label) -> bool:
    """Return whether a stage evaluates on the suite of the run's main figure; others are for `eval-NAME`."""
    return row["stage"] == "evaluate" and row["purpose"] == "eval"


def _pass_at_1(summary: Mapping[str, object]) -> float | None:
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


def _begun(event: StageStarted | StageReused, start: int, status: str) -> Attempt:
    return {
        "stage": event["stage"],
        "round": event["round"],
        "purpose": event["purpose"],
        "output": event["output"],
        "attempt": event.get("attempt"),
        "start": start,
        "started": event["time"],
        "seconds": 0.0,
        "error": "",
        "status": status,
    }


def _facts(folder: Path, story: Story, on_damage: OnDamage) -> Facts:
    """Return the facts of a run that depend on files alone, not on who works on it, so that they can be kept."""
    rows = list(story.rows.values())
    reused = sum(row["status"] == "reused" for row in rows)
    brief: Brief = {
        "run": folder.name,
        "status": story.status,
        "error": story.error,
        "verb": read_settings(folder, on_damage)["verb"],
        "started": story.started,
        "stages": len(rows) - reused,
        "reused": reused,
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }
    return {"brief": brief, "at_work": [f"{row['stage']} of round {row['round']}" for row in story.at_work]}


def _standing(folder: Path, facts: Facts) -> Brief:
    brief = facts["brief"]
    if brief["status"] != OPEN:
        return brief
    if holder(folder) is not None:
        return {**brief, "status": "running", "error": ""}
    during = f" during {' and '.join(facts['at_work'])}" if facts["at_work"] else ""
    return {**brief, "status": "killed", "error": f"the process was killed{during}; {AGAIN}"}


def _listed(folder: Path, sizes: Sizes, on_damage: OnDamage) -> tuple[Listed, dict[str, int]]:
    """Return the summary of a run for a list, and the bytes of its artifacts that are there.

    Read from its journal if what was kept of it is out of date.
    """
    proof = proof_of(folder)
    facts = recall(folder, proof)
    if facts is None:
        found: list[CorruptArtifactError] = []
        facts = _measured(folder, sizes, found.append)
        if not found:
            keep(folder, proof, facts)
        for damage in found:
            on_damage(damage)
    for output in facts["finished"]:
        if not sizes.has(output):
            on_damage(missing(output, folder.name, facts["brief"]["verb"]))
    outputs = {ref: num_bytes for ref, num_bytes in facts["outputs"].items() if sizes.has(ref)}
    return {**_standing(folder, facts), "gain": facts["gain"], "bytes": sum(outputs.values())}, outputs


def _measured(folder: Path, sizes: Sizes, on_damage: OnDamage) -> KeptFacts:
    story = _read(folder, on_damage)
    facts, rows = _facts(folder, story, on_damage), story.rows.values()
    outputs = {row["output"]: sizes.of(row["output"], on_damage) for row in rows}
    states = (state_ref(Ref.parse(output)) for output in outputs if output.startswith(f"{CHECKPOINTS}/"))
    outputs |= {str(state): sizes.of(str(state), on_damage) for state in states}
    finished = finished_outputs(rows)
    for output in finished:
        if outputs[output] is None:
            on_damage(missing(output, folder.name, facts["brief"]["verb"]))
    there = {output: num_bytes or 0 for output, num_bytes in outputs.items()}
    gain = _gain(story.pass_at_1, lambda output: sizes.summary(output, on_damage))
    return {**facts, "outputs": there, "finished": finished, "gain": gain}


def _gain(pass_at_1: Mapping[int, float | str | None], summary: Callable[[str], Mapping[str, object]]) -> float | None:
    """pass@1 after the last round that was evaluated, less that of the starting policy; None without both."""
    last = max(pass_at_1, default=0)
    if not last or 0 not in pass_at_1:
        return None
    found = (pass_at_1[index] for index in (0, last))
    before, after = (_pass_at_1(summary(value)) if isinstance(value, str) else value for value in found)
    return None if before is None or after is None else after - before


def _age(folder: Path) -> float:
    settings = folder / RUN
    return (settings if settings.exists() else folder).stat().st_mtime
