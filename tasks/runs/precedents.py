"""Earlier computations, by the journals of all runs: the artifact to compare a call with, and its likely cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import OnDamage, refuse
from gradus.data.lake.store import Ref
from gradus.tasks.runs.history import run_folders
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.records import StageStarted, Summary

NUM_RUNS = 100
"""Journals read, newest first."""

Key = tuple[str, int, str]
"""Stage, round, purpose."""


@dataclass(frozen=True)
class Precedent:
    """An attempt of a stage that ended well: in which run, with what result, in how many seconds."""

    run: str
    key: Key
    output: Ref
    started: float
    seconds: float
    summary: Summary


def of_call(found: Sequence[Precedent], key: Key) -> list[Precedent]:
    """Return the precedents of the same stage, round and purpose."""
    return [each for each in found if each.key == key]


def alike(found: Sequence[Precedent], key: Key) -> list[Precedent]:
    """Return those most like a call: of its round and purpose if there are any, else of its purpose, else all."""
    stage, _, purpose = key
    same_stage = [each for each in found if each.key[0] == stage]
    same_purpose = [each for each in same_stage if each.key[2] == purpose]
    return of_call(found, key) or same_purpose or same_stage


def precedents(runs: Path, prefer: str = "") -> list[Precedent]:
    """Return every attempt that ended well, newest first; those of runs whose name begins with `prefer` come first."""
    folders = run_folders(runs)[:NUM_RUNS]
    folders.sort(key=lambda folder: not folder.name.startswith(prefer))
    return [each for folder in folders for each in reversed(finished(folder))]


def finished(folder: Path, on_damage: OnDamage = refuse) -> list[Precedent]:
    """Return the attempts of a run that ended well, in the order they began."""
    begun: dict[str, StageStarted] = {}
    found: list[Precedent] = []
    for event in read_events(folder, on_damage):
        if event["event"] == "stage_started":
            begun[event["attempt"]] = event
        elif event["event"] == "stage_finished" and event["status"] == "finished" and event["attempt"] in begun:
            start = begun[event["attempt"]]
            key = (start["stage"], start["round"], start["purpose"])
            ref, summary = Ref.parse(start["output"]), event["summary"]
            found.append(Precedent(folder.name, key, ref, start["time"], event["seconds"], summary))
    return found
