"""What runs there are and what each did, read from their journals; and SQL over the lake."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.errors import UsageError
from data.queries import run_sql
from data.schema import TABLES
from data.store import Ref, Store
from tasks.journal import read_events
from tasks.runlock import holder
from tasks.settings import Home


def list_runs(runs: Path) -> list[dict[str, Any]]:
    """Every run, newest first: verb, status, stage attempts, reused stages, seconds computed, why it did not finish."""
    folders = sorted((p for p in runs.glob("*") if (p / "run.json").is_file()), key=_age, reverse=True)
    return [_brief(folder) for folder in folders]


def read_run(runs: Path, run: str) -> dict[str, Any]:
    """One run: its settings, its status and every stage attempt."""
    folder = runs / run
    if not (folder / "run.json").is_file():
        raise UsageError(f"there is no run {run}", hint="list them with `gradus runs`")
    return {
        **_brief(folder),
        "attempts": list(attempts(folder)),
        "settings": json.loads((folder / "run.json").read_text()),
    }


def attempts(folder: Path) -> Iterator[dict[str, Any]]:
    """Stage attempts in the order they began, each with how it ended."""
    rows: dict[str, dict[str, Any]] = {}
    for event in read_events(folder):
        match event["event"]:
            case "stage_started":
                facts = {k: event[k] for k in ("stage", "round", "purpose", "output")}
                rows[event["attempt"]] = {**facts, "status": "running", "seconds": 0.0}
            case "stage_finished":
                ended = {"status": event["status"], "seconds": round(event["seconds"], 3)}
                rows[event["attempt"]].update(ended, error=event.get("error", ""))
            case "stage_reused":
                facts = {k: event[k] for k in ("stage", "round", "purpose", "output")}
                rows[f"reused-{len(rows)}"] = {**facts, "status": "reused", "seconds": 0.0}
            case _:
                continue
    yield from rows.values()


def query(home: Home, text: str, run: str | None) -> dict[str, Any]:
    """Run SQL over the finished artefacts of the lake, or of one run."""
    store = Store(home.lake)
    if run is None:
        refs = {table: _all_refs(store, table) for table in TABLES}
    else:
        named = {
            Ref.parse(a["output"])
            for a in read_run(home.runs, run)["attempts"]
            if a["status"] in ("finished", "reused")
        }
        refs = {table: sorted((r for r in named if r.table == table), key=str) for table in TABLES}
    answer = run_sql(store, {table: found for table, found in refs.items() if found}, text)
    return {"columns": answer.column_names, "rows": [list(row.values()) for row in answer.to_pylist()]}


def _all_refs(store: Store, table: str) -> list[Ref]:
    folders = sorted((store.root / table).glob("*"))
    refs = [Ref(table, folder.name) for folder in folders if folder.is_dir()]
    return [ref for ref in refs if store.find(ref) is not None]


def _brief(folder: Path) -> dict[str, Any]:
    body: Mapping[str, Any] = json.loads((folder / "run.json").read_text())
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
