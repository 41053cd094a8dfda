"""The other hosts of a run: each waits for updates that ask for it, and takes part in them until the run ends.

joined(home.runs / "tiny-1", say=print, wait_s=600)
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gradus.data.errors import StageError
from gradus.models.judging.process_tree import kill_tree
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.records import RunFinished
from gradus.tasks.stages.update.launch.invitation import invitation
from gradus.tasks.stages.update.launch.job import RankJob
from gradus.tasks.stages.update.launch.starting import start_agent

_AGAIN_S = 0.5


def joined(run_folder: Path, say: Callable[[str], None], wait_s: float) -> int:
    """Take part in every update of a run until it ends; return in how many.

    StageError if the run fails, or if it neither goes on nor begins within `wait_s`.
    """
    began, seen = time.time(), list[str]()
    while True:
        path = invitation(run_folder)
        job = None if path is None else _read(path)
        if path is not None and job is not None and job.id not in seen:
            seen.append(job.id)
            say(f"taking part in {job.output}")
            _take_part(path, job, run_folder)
            continue
        going_on, ending = _standing(run_folder)
        if ending is not None and ending["time"] > began:
            if ending["status"] != "finished":
                raise StageError(f"the run {run_folder.name} failed: {ending['error']}", hint="see the first host")
            return len(seen)
        if not going_on and time.time() - began > wait_s:
            raise StageError(
                f"the run {run_folder.name} did not begin within {wait_s:g} s",
                hint="start it on the first host, with the same GRADUS_HOME",
            )
        time.sleep(_AGAIN_S)


def _take_part(path: Path, job: RankJob, run_folder: Path) -> None:
    """Run this host's ranks of a job until they end, or until the first host has given the job up."""
    agent = start_agent(path, UpdateConfig.model_validate(job.config).launch, role="guest")
    try:
        while agent.poll() is None:
            if invitation(run_folder) != path or _read(path) != job:
                _end_soon(agent)
                return
            time.sleep(_AGAIN_S)
    finally:
        kill_tree(agent.pid)
        agent.wait()


def _end_soon(agent: "subprocess.Popen[bytes]") -> None:
    """Let ranks that have done their work leave by themselves."""
    try:
        agent.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        return


def _read(path: Path) -> RankJob | None:
    """The job at a path; None if it has just been removed."""
    try:
        return RankJob.read(path)
    except (FileNotFoundError, ValueError):
        return None


def _standing(run_folder: Path) -> tuple[bool, RunFinished | None]:
    """Whether the run goes on, as its journal says, and how it ended if it did."""
    last: RunFinished | None = None
    going_on = False
    for event in read_events(run_folder):
        if event["event"] == "run_started":
            going_on, last = True, None
        elif event["event"] == "run_finished":
            going_on, last = False, event
    return going_on, last
