"""The other hosts of a run: each waits for updates that ask for it, and takes part in them until the run ends.

joined(home.runs / "tiny-1", say=print, wait_s=600)
"""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.data.errors import StageError
from gradus.data.files import replace_file
from gradus.data.runlock import holder
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.records import RunFinished
from gradus.tasks.stages.update.launch.invitation import invitation
from gradus.tasks.stages.update.launch.job import RankJob
from gradus.tasks.stages.update.launch.ranks import Note, RankGroup

_AGAIN_S = 0.5
_GRACE_S = 30.0
"""Seconds that an open run may be without a process: the same command, started again, takes it over."""


def joined(run_folder: Path, say: Callable[[str], None], wait_s: float) -> int:
    """Take part in every update of a run until it ends; return in how many.

    StageError if the run fails or its process is killed, or if it neither continues nor begins within `wait_s`.
    """
    began, seen, num_joined = time.time(), list[str](), 0
    first_host, at_first = _FirstHost(run_folder), _standing(run_folder)
    while True:
        invited = invitation(run_folder)
        if invited is not None and invited["job"]["id"] not in seen:
            seen.append(invited["job"]["id"])
            num_joined += _take_part(invited, run_folder, first_host, say)
            continue
        now = _standing(run_folder)
        if now.ending is not None and now.ending["time"] > began:
            if now.ending["status"] != "finished":
                raise StageError(f"the run {run_folder.name} failed: {now.ending['error']}", hint="see the first host")
            return num_joined
        waited = time.time() - began > wait_s
        if waited and not now.goes_on:
            raise StageError(
                f"the run {run_folder.name} did not begin within {wait_s:g} s",
                hint="start it on the first host, with the same GRADUS_HOME",
            )
        # File locks of other hosts are invisible here, so judge liveness by whether the journal grows.
        if first_host.is_lost() or (waited and not first_host.seen and now.num_events == at_first.num_events):
            raise _killed(run_folder)
        time.sleep(_AGAIN_S)


class _FirstHost:
    """The process that works on the run, as far as this host sees the lock that it holds."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder
        self._seen_at: float | None = None

    @property
    def seen(self) -> bool:
        """Return whether a process has held the run."""
        return self._seen_at is not None

    def is_lost(self) -> bool:
        """Return whether a process has held the run, and none has for the time of grace."""
        if holder(self._folder) is not None:
            self._seen_at = time.monotonic()
        return self._seen_at is not None and time.monotonic() - self._seen_at > _GRACE_S


def _killed(run_folder: Path) -> StageError:
    return StageError(
        f"the run {run_folder.name} is running by its journal, but no process works on it: it was killed",
        hint="start it again on the first host with the same command, then join again",
    )


def _take_part(invited: dict[str, Any], run_folder: Path, first_host: _FirstHost, say: Callable[[str], None]) -> int:
    """Run this host's ranks for a job and the jobs that follow; StageError if the first host's process was killed.

    Return the number of updates done, 0 for a job that a killed process has left (nobody meets its ranks), or for which
    enough hosts are there.
    """
    job, folder, num_done = RankJob(**invited["job"]), Path(invited["folder"]), 0
    launch = job.update_config().launch
    number = next((number for number in range(1, launch.hosts) if _claimed(folder / f"host-{number}")), 0)
    if not number:
        return 0
    group = RankGroup(job, folder, first=number * launch.processes)

    def hear(notes: Iterable[Note]) -> None:
        nonlocal num_done
        for note in notes:
            if note["rank"] == number * launch.processes:
                num_done += note["kind"] == "done"
                if note["kind"] == "begun":
                    say(f"taking part in {note['output']}")

    try:
        while not group.is_over and invitation(run_folder) == invited:
            if first_host.is_lost():
                raise _killed(run_folder)
            hear(group.new())
            time.sleep(_AGAIN_S)
        hear(group.leave())
        return num_done
    finally:
        group.end()
        with suppress(FileNotFoundError):  # removed meanwhile
            replace_file(folder / f"lost-{number}.json", json.dumps(group.failures))


def _claimed(path: Path) -> bool:
    """Make a file that no other host has made; return whether it is this one's."""
    try:
        path.open("x").close()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class _Standing:
    """Status of a run by its journal: whether it is open, its outcome if it ended, and the journal's size."""

    goes_on: bool
    ending: RunFinished | None
    num_events: int


def _standing(run_folder: Path) -> _Standing:
    ending: RunFinished | None = None
    goes_on, num_events = False, 0
    for event in read_events(run_folder):
        num_events += 1
        if event["event"] == "run_started":
            goes_on, ending = True, None
        elif event["event"] == "run_finished":
            goes_on, ending = False, event
    return _Standing(goes_on, ending, num_events)
