"""What runs there are and what each did, read from their journals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradus.data.errors import UsageError
from gradus.data.nearest import unique
from gradus.tasks.host.runlock import holder
from gradus.tasks.runs.journal import read_events, read_settings
from gradus.tasks.runs.run_cache import Sizes, keep, proof_of, recall

AGAIN = "the same command goes on where it stopped"
OPEN = ""
"""How a run stands whose last command has not said how it ended: it runs, or it was killed."""

Json = dict[str, Any]


def list_runs(runs: Path, lake: Path) -> Json:
    """Every run, newest first: what `brief` says of it, its gain and bytes; and the bytes of all artifacts by table.

    An artifact that several runs have counts in each of them, and once in the sums.
    """
    sizes, outputs = Sizes(lake), dict[str, int]()
    listed = [_listed(folder, sizes) for folder in run_folders(runs)]
    for run in listed:
        outputs.update(run.pop("outputs"))
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
    return sorted((p for p in runs.glob("*") if (p / "run.json").is_file()), key=_age, reverse=True)


def read_run(runs: Path, run: str, lake: Path) -> Json:
    """One run: what `list_runs` says of it, every stage attempt with the bytes of its artifact, and its settings."""
    folder = run_folder(runs, run)
    listed = _listed(folder, Sizes(lake))
    outputs = listed.pop("outputs")
    return {
        **listed,
        "bytes_by_table": _by_table(outputs),
        "attempts": [{**row, "bytes": outputs.get(row["output"], 0)} for row in attempts(folder)],
        "logs": str(folder / "logs") if (folder / "logs").is_dir() else "",
        "settings": read_settings(folder),
    }


def run_folder(runs: Path, run: str) -> Path:
    """The folder of a run by its name, or by a beginning that no other has; UsageError if that names none."""
    if not run:
        raise UsageError("the name of the run is empty", hint="list them with `gradus runs`")
    return runs / unique(run, run_names(runs), "run", "list them with `gradus runs`")


def run_names(runs: Path) -> list[str]:
    """The names of all runs, in no order."""
    return [path.parent.name for path in runs.glob("*/run.json")]


def attempts(folder: Path) -> Iterator[Json]:
    """Stage attempts in the order they began, each with how it ended.

    `attempt` is the name that the journal's metrics have, null where a stage was reused; `start` is the number of the
    command, of those that were given for the run, that came to the stage.
    """
    story = _read(folder)
    if story.at_work and holder(folder) is None:
        _kill(story.rows)
    yield from story.rows.values()


def brief(folder: Path) -> Json:
    """What the journal says of a run in short: verb, status, when it began, stages, seconds, why it did not finish."""
    return _standing(folder, _facts(folder))


@dataclass
class _Story:
    """A journal as rows of attempts, and how the last command ended."""

    rows: dict[str, Json] = field(default_factory=dict[str, Json])
    started: float | None = None
    status: str = OPEN
    error: str = ""
    pass_at_1: dict[int, float | str | None] = field(default_factory=dict[int, float | str | None])
    """pass@1 of the main suite by round; where an evaluation was reused, its artifact."""

    @property
    def at_work(self) -> list[Json]:
        """Attempts that began and did not end."""
        return [row for row in self.rows.values() if row["status"] == "running"]


def _read(folder: Path) -> _Story:
    story, start = _Story(), 0
    for event in read_events(folder):
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
                story.rows[event["attempt"]] = {**_label(event, start), "status": "running"}
            case "stage_finished":
                if event["attempt"] in story.rows:  # its beginning may have been moved out of the journal
                    _end(story, story.rows[event["attempt"]], event)
            case "stage_reused":
                story.rows[f"reused-{len(story.rows)}"] = {**_label(event, start), "status": "reused"}
                if _is_main_evaluation(event):
                    story.pass_at_1[event["round"]] = event["output"]
            case _:
                continue
    return story


def _end(story: _Story, row: Json, event: Mapping[str, Any]) -> None:
    row.update(status=event["status"], seconds=round(event["seconds"], 3), error=event.get("error", ""))
    if _is_main_evaluation(row) and event["status"] == "finished":
        story.pass_at_1[row["round"]] = _pass_at_1(event.get("summary", {}))


def _is_main_evaluation(row: Mapping[str, Any]) -> bool:
    """Whether a stage evaluates on the suite of the run's main figure; others are for `eval-NAME`."""
    return row["stage"] == "evaluate" and row["purpose"] == "eval" and isinstance(row["round"], int)


def _pass_at_1(summary: Mapping[str, Any]) -> float | None:
    try:
        return float(summary["pass_at"]["1"]["value"])
    except (KeyError, TypeError, ValueError):  # no verdicts, or written by another version
        return None


def _kill(rows: Mapping[str, Json]) -> None:
    """Attempts that did not end before their command did were killed with it."""
    for row in rows.values():
        if row["status"] == "running":
            row["status"] = "killed"


def _label(event: Mapping[str, Any], start: int) -> Json:
    named = {key: event[key] for key in ("stage", "round", "purpose", "output")}
    found = {"attempt": event.get("attempt"), "start": start, "started": event["time"]}
    return {**named, **found, "seconds": 0.0, "error": ""}


def _facts(folder: Path) -> Json:
    """What can be said of a run without asking who works on it: of files alone, so that it can be kept."""
    story = _read(folder)
    rows = list(story.rows.values())
    reused = sum(row["status"] == "reused" for row in rows)
    return {
        "verb": read_settings(folder)["verb"],
        "status": story.status,
        "started": story.started,
        "stages": len(rows) - reused,
        "reused": reused,
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "error": story.error,
        "at_work": [f"{row['stage']} of round {row['round']}" for row in story.at_work],
        "pass_at_1": story.pass_at_1,
        "outputs": dict.fromkeys(row["output"] for row in rows),
    }


def _standing(folder: Path, facts: Mapping[str, Any]) -> Json:
    """The facts with the status that the run has now."""
    status, error = facts["status"], facts["error"]
    if status == OPEN:
        during = f" during {' and '.join(facts['at_work'])}" if facts["at_work"] else ""
        alive = holder(folder) is not None
        status, error = ("running", "") if alive else ("killed", f"the process was killed{during}; {AGAIN}")
    shown = ("verb", "started", "stages", "reused", "seconds")
    return {"run": folder.name, "status": status, "error": error, **{key: facts[key] for key in shown}}


def _listed(folder: Path, sizes: Sizes) -> Json:
    """What a list says of a run; read from its journal if what was kept of it is out of date."""
    proof = proof_of(folder)
    facts = recall(folder, proof)
    if facts is None:
        facts = _facts(folder)
        facts["outputs"] = {ref: sizes.of(ref) for ref in facts["outputs"]}
        facts["gain"] = _gain(facts.pop("pass_at_1"), sizes)
        keep(folder, proof, facts)
    outputs = {ref: num_bytes for ref, num_bytes in facts["outputs"].items() if sizes.has(ref)}
    found = {"gain": facts["gain"], "bytes": sum(outputs.values()), "outputs": outputs}
    return {**_standing(folder, facts), **found}


def _gain(pass_at_1: Mapping[int, float | str | None], sizes: Sizes) -> float | None:
    """pass@1 after the last round that was evaluated, less that of the starting policy; None without both."""
    last = max(pass_at_1, default=0)
    if not last or 0 not in pass_at_1:
        return None
    found = (pass_at_1[index] for index in (0, last))
    before, after = (_pass_at_1(sizes.summary(value)) if isinstance(value, str) else value for value in found)
    return None if before is None or after is None else after - before


def _age(folder: Path) -> float:
    return (folder / "run.json").stat().st_mtime
