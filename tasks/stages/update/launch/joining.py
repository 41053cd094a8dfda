"""The other hosts of a run: each waits for updates that ask for it, and takes part in them until the run ends.

joined(home.runs / "tiny-1", say=print, wait_s=600)
"""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import StageError
from gradus.data.runlock import holder
from gradus.models.processes.tree import kill_tree
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.records import RunFinished
from gradus.tasks.stages.update.launch.invitation import invitation
from gradus.tasks.stages.update.launch.job import RankJob, file_name
from gradus.tasks.stages.update.launch.mail import Mail
from gradus.tasks.stages.update.launch.starting import start_agent

_AGAIN_S = 0.5
_LEAVE_S = 5.0
_GRACE_S = 30.0
"""Seconds that an open run may be without a process: the same command, started again, takes it over."""


def joined(run_folder: Path, say: Callable[[str], None], wait_s: float) -> int:
    """Take part in every update of a run until it ends; return in how many.

    StageError if the run fails or its process is killed, or if it neither continues nor begins within `wait_s`.
    """
    began, seen, num_joined = time.time(), list[str](), 0
    first_host, at_first = _FirstHost(run_folder), _standing(run_folder)
    while True:
        path = invitation(run_folder)
        job = None if path is None else _read(path)
        if path is not None and job is not None and job.id not in seen:
            seen.append(job.id)
            num_joined += _take_part(path, job, run_folder, first_host, say)
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


def _take_part(path: Path, job: RankJob, run_folder: Path, first_host: _FirstHost, say: Callable[[str], None]) -> int:
    """Run this host's ranks for a job and the jobs that follow; StageError if the first host's process was killed.

    Return the number of updates done, 0 for a job that a killed process has left: nobody meets its ranks.
    """
    agent, updates = start_agent(path, job.update_config().launch, role="guest"), _Updates(path.parent, say)
    try:
        while agent.poll() is None and invitation(run_folder) == path and updates.go_on():
            if first_host.is_lost():
                raise _killed(run_folder)
            time.sleep(_AGAIN_S)
        with suppress(subprocess.TimeoutExpired):
            agent.wait(timeout=_LEAVE_S)  # ranks that have done their work leave by themselves
        updates.go_on()
        return updates.num_done
    finally:
        kill_tree(agent.pid)
        agent.wait()


class _Updates:
    """The updates that a group of ranks is asked for, and those that it has done."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.num_done = 0
        self._folder, self._say, self._mail, self._num_said = folder, say, Mail(folder), 0

    def go_on(self) -> bool:
        """Say which update begins, and count those that are done; return False once the folder is gone."""
        with suppress(FileNotFoundError):  # removed meanwhile
            self.num_done += sum(note["kind"] == "done" for note in self._mail.new())
        job = _read(self._folder / file_name(self._num_said))
        if job is not None:
            self._num_said += 1
            self._say(f"taking part in {job.output}")
        return self._folder.is_dir()


def _read(path: Path) -> RankJob | None:
    """The job at a path; None if it has just been removed."""
    try:
        return RankJob.read(path)
    except (FileNotFoundError, ValueError):
        return None


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
