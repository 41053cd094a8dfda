"""What runs there are and what each did, read from their journals."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.errors import UsageError, shortened
from tasks.journal import read_events, read_settings
from tasks.runlock import holder


def list_runs(runs: Path) -> list[dict[str, Any]]:
    """Every run, newest first: verb, status, stage attempts, reused stages, seconds computed, why it did not finish."""
    return [brief(folder) for folder in run_folders(runs)]


def run_folders(runs: Path) -> list[Path]:
    """The folder of every run, newest first."""
    return sorted((p for p in runs.glob("*") if (p / "run.json").is_file()), key=_age, reverse=True)


def read_run(runs: Path, run: str) -> dict[str, Any]:
    """One run: its settings, its status and every stage attempt."""
    folder = run_folder(runs, run)
    return {
        **brief(folder),
        "attempts": list(attempts(folder)),
        "settings": read_settings(folder),
    }


def run_folder(runs: Path, run: str) -> Path:
    """The folder of a run; UsageError where there is none of that name."""
    if not (runs / run / "run.json").is_file():
        problem = f"there is no run {shortened(run)}" if run else "the name of the run is empty"
        raise UsageError(problem, hint="list them with `gradus runs`")
    return runs / run


def attempts(folder: Path) -> Iterator[dict[str, Any]]:
    """Stage attempts in the order they began, each with how it ended.

    `attempt` is the name that the journal's metrics have, null where a stage was reused; `start` is the number of the
    command, of those that were given for the run, that came to the stage.
    """
    rows: dict[str, dict[str, Any]] = {}
    start = 0
    for event in read_events(folder):
        match event["event"]:
            case "run_started":
                _kill(rows)
                start += 1
            case "run_finished":
                _kill(rows)
            case "stage_started":
                rows[event["attempt"]] = {**_facts(event, start), "status": "running"}
            case "stage_finished":
                ended = {"status": event["status"], "seconds": round(event["seconds"], 3)}
                if event["attempt"] in rows:  # its beginning may have been moved out of the journal
                    rows[event["attempt"]].update(ended, error=event.get("error", ""))
            case "stage_reused":
                rows[f"reused-{len(rows)}"] = {**_facts(event, start), "status": "reused"}
            case _:
                continue
    if any(row["status"] == "running" for row in rows.values()) and holder(folder) is None:
        _kill(rows)
    yield from rows.values()


def _kill(rows: Mapping[str, dict[str, Any]]) -> None:
    """Attempts that did not end before their command did were killed with it."""
    for row in rows.values():
        if row["status"] == "running":
            row["status"] = "killed"


def _facts(event: Mapping[str, Any], start: int) -> dict[str, Any]:
    named = {key: event[key] for key in ("stage", "round", "purpose", "output")}
    found = {"attempt": event.get("attempt"), "start": start, "started": event["time"]}
    return {**named, **found, "seconds": 0.0, "error": ""}


def brief(folder: Path) -> dict[str, Any]:
    """What a list of runs shows of one."""
    body = read_settings(folder)
    rows = list(attempts(folder))
    reused = sum(row["status"] == "reused" for row in rows)
    status, error = _status(folder)
    return {
        "run": folder.name,
        "verb": body["verb"],
        "status": status,
        "stages": len(rows) - reused,
        "reused": reused,
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "error": error,
    }


def _status(folder: Path) -> tuple[str, str]:
    """How the last launch of a run stands, and why it did not finish."""
    status, error = "killed", ""
    for event in read_events(folder):
        if event["event"] == "run_started":
            status, error = ("running" if holder(folder) else "killed"), ""
        elif event["event"] == "run_finished":
            status, error = event["status"], event.get("error", "")
    return status, error


def _age(folder: Path) -> float:
    return (folder / "run.json").stat().st_mtime
