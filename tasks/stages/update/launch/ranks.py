"""The ranks of an update on one host, which do one job, or one after the other while they stay.

group = begun(job, place)                              # other hosts are invited by a file in the run's folder
joined(home.runs / "tiny-1", say=print, wait_s=600)    # on another host than the first

There it waits for updates that ask for it, and takes part in them until the run ends.
"""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradus.data.errors import StageError, UsageError
from gradus.data.files import replace_file
from gradus.data.records import Json, JsonObject
from gradus.data.runlock import holder
from gradus.models.processes.child import Child
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.settings import run_logs, thread_settings
from gradus.tasks.host.processes import child_environment
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.records import RunFinished, RunStarted
from gradus.tasks.stages.context import StageContext

_FILE = "launch.json"
AGAIN_S = 0.1
LEAVE_S = 5.0
"""Seconds in which ranks that have done their work leave by themselves."""
_FOLDER = "launch"
"""Holds the folder of a group: in the run's logs if it stays, else in the output's scratch folder."""
_RANK = [sys.executable, "-P", "-m", "gradus.tasks.stages.update.launch.rank"]

Note = dict[str, Any]
"""A message of gradus.tasks.stages.update.launch.rank with its `rank`, or one of kind "ended" with its exit `code`."""
_LOOK_S = 0.5
_GRACE_S = 30.0
"""Seconds that an open run may be without a process: the same command, started again, takes it over."""


@dataclass(frozen=True)
class RankJob:
    """The job of an update's ranks, the same for all."""

    id: str
    """The name of the launch; other hosts know it by this."""
    lake: str
    output: str
    inputs: Mapping[str, list[str]]
    config: JsonObject
    seed: int
    num_tokens: int
    """Number of tokens at once in the model: the settings' `micro_tokens`, or less after memory ran out."""
    num_halvings: int = 0
    stays: bool = False
    """True if the ranks wait for another job after this one."""
    facts: JsonObject = field(default_factory=dict[str, Json])
    """Facts that the run decides for the stage."""

    def update_config(self) -> UpdateConfig:
        """The settings of the update."""
        return UpdateConfig.model_validate(self.config)


def _invite(job: RankJob, folder: Path) -> Path | None:
    """Name a job to other hosts, if it needs any; return the folder of the run that they join."""
    if job.update_config().launch.hosts == 1:
        return None
    if (logs := run_logs()) is None:
        raise UsageError("an update on several hosts needs a run that they can join", hint="start it with a command")
    invitation = json.dumps({"job": asdict(job), "folder": str(folder)})
    replace_file(logs.parent / _FILE, invitation, durable=True)
    return logs.parent


def withdraw(run_folder: Path) -> None:
    """Withdraw the invitation; the worker that made it may have been killed."""
    (run_folder / _FILE).unlink(missing_ok=True)


def invitation(run_folder: Path) -> dict[str, Any] | None:
    """Return the job that hosts are to join now, and the folder that they share; None if there is none."""
    try:
        return json.loads((run_folder / _FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None


class RankGroup:
    """Ranks that were started for a job; `first` is the number of the first one on this host.

    In the folder `invites` of a run other hosts are invited until the group ends.
    """

    def __init__(self, job: RankJob, folder: Path, first: int = 0, invites: Path | None = None) -> None:
        """Start them; in `folder` the processes of one host meet, and other hosts leave word of what went wrong."""
        self.id, self.stays, self.folder, self._first, self._invites = job.id, job.stays, folder, first, invites
        self._config = job.update_config()
        launch = self._config.launch
        self.names = list[str]()
        """Name of every rank for a sentence, once they have met."""
        self.has_begun = False
        """True once a rank has begun the last job."""
        self.failures: list[Note] = []
        """Errors of ranks, and ends of them."""
        shared = {
            **thread_settings(launch.processes),
            "WORLD_SIZE": str(launch.num_ranks),
            "LOCAL_WORLD_SIZE": str(launch.processes),
        }
        meeting = f"tcp://{launch.rendezvous}" if launch.hosts > 1 else f"file://{folder / 'group'}"
        self.ranks: list[Child] = []
        try:
            for local in range(launch.processes):
                own = {**shared, "RANK": str(first + local), "LOCAL_RANK": str(local)}
                rank = Child([*_RANK, str(os.getpid())], env=child_environment(own), output=1, errors=2)
                self.ranks.append(rank)
                rank.send({"job": asdict(job), "meeting": meeting})
        except BaseException:
            self.end()
            raise

    @property
    def is_over(self) -> bool:
        """Return whether all ranks of this host have ended."""
        return all(rank.closed for rank in self.ranks)

    @property
    def elsewhere(self) -> range:
        """Return the ranks of other hosts, once they have met those of this first one."""
        return range(len(self.ranks), len(self.names))

    def serves(self, config: UpdateConfig) -> bool:
        """Return whether this group can run the update: same number of ranks and device, all alive."""
        same = (self._config.launch, self._config.device) == (config.launch, config.device)
        return same and all(rank.alive for rank in self.ranks)

    def ask(self, job: RankJob) -> None:
        """Have them do another job, their last one unless it says that they stay."""
        self.stays, self.has_begun = job.stays, False
        self.ranks[0].send({"job": asdict(job)})

    def new(self) -> Iterator[Note]:
        """Yield the messages that came since the last call."""
        for number, rank in enumerate(self.ranks, self._first):
            if rank.closed:
                continue
            notes: list[Note] = [{**message, "rank": number} for message in rank.receive()]
            if rank.closed:
                rank.settle(LEAVE_S)
                notes.append({"kind": "ended", "rank": number, "code": rank.end()})
            for note in notes:
                if note["kind"] == "here":
                    self.names = note["names"]
                self.has_begun |= note["kind"] == "begun"
                yield note
            self.failures += [note for note in notes if note["kind"] in ("error", "ended")]

    def leave(self) -> Iterator[Note]:
        """Yield what the ranks still say while they leave."""
        give_up = time.monotonic() + LEAVE_S
        while not self.is_over and time.monotonic() < give_up:
            yield from self.new()
            time.sleep(AGAIN_S)

    def name(self, rank: int) -> str:
        """Return the name of a rank for a sentence."""
        if self.names:
            return self.names[rank]
        own = self.ranks[rank - self._first].pid if rank - self._first in range(len(self.ranks)) else "?"
        return rank_name(rank, self._config.launch.num_ranks, own)

    def end(self) -> None:
        """End all ranks of this host; those of others follow."""
        for rank in self.ranks:
            rank.closed = True
            rank.end()
        if self._invites is not None:
            withdraw(self._invites)


def rank_name(rank: int, num_ranks: int, pid: object) -> str:
    """Return the name of a rank of this host for a sentence."""
    return f"rank {rank} of {num_ranks} (process {pid} on {socket.gethostname()})"


def place_of(ctx: StageContext, config: UpdateConfig) -> tuple[Path, bool]:
    """Return where a group of ranks has its folder, and whether it stays: a run's does, if the settings want it."""
    logs = None if config.between_updates == "disk" else run_logs()
    return (logs or ctx.out.scratch) / _FOLDER, logs is not None


def begun(job: RankJob, place: Path) -> RankGroup:
    """Start the ranks of a first job on this host, in a folder below `place`, and invite other hosts.

    What lay in `place` is removed.
    """
    shutil.rmtree(place, ignore_errors=True)
    folder = place / job.id
    folder.mkdir(parents=True)
    return RankGroup(job, folder, invites=_invite(job, folder))


def joined(run_folder: Path, say: Callable[[str], None], wait_s: float) -> int:
    """Take part in every update of a run until it ends; return in how many.

    StageError if the run fails or its process is killed, or if it neither continues nor begins within `wait_s`.
    """
    began, seen, num_joined = time.time(), list[str](), 0
    first_host, num_at_first = _FirstHost(run_folder), _standing(run_folder)[1]
    while True:
        invited = invitation(run_folder)
        if invited is not None and invited["job"]["id"] not in seen:
            seen.append(invited["job"]["id"])
            num_joined += _take_part(invited, run_folder, first_host, say)
            continue
        last, num_events = _standing(run_folder)
        if last is not None and last["event"] == "run_finished" and last["time"] > began:
            if last["status"] != "finished":
                raise StageError(f"the run {run_folder.name} failed: {last['error']}", hint="see the first host")
            return num_joined
        waited = time.time() - began > wait_s
        if waited and (last is None or last["event"] == "run_finished"):
            raise StageError(
                f"the run {run_folder.name} did not begin within {wait_s:g} s",
                hint="start it on the first host, with the same GRADUS_HOME",
            )
        # File locks of other hosts are invisible here, so judge liveness by whether the journal grows.
        if first_host.is_lost() or (waited and first_host.seen_s is None and num_events == num_at_first):
            raise _killed(run_folder)
        time.sleep(_LOOK_S)


@dataclass
class _FirstHost:
    """The process that works on the run, as far as this host sees the lock that it holds."""

    folder: Path
    seen_s: float | None = None
    """The last time at which a process held the run."""

    def is_lost(self) -> bool:
        """Return whether a process has held the run, and none has for the time of grace."""
        if holder(self.folder) is not None:
            self.seen_s = time.monotonic()
        return self.seen_s is not None and time.monotonic() - self.seen_s > _GRACE_S


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
            time.sleep(_LOOK_S)
        hear(group.leave())
        return num_done
    finally:
        group.end()
        with suppress(FileNotFoundError):  # removed meanwhile
            replace_file(folder / f"lost-{number}.json", json.dumps(group.failures))


def _claimed(path: Path) -> bool:
    """Make a file that no other host has made; return whether it is this one's."""
    with suppress(OSError):
        path.open("x").close()
        return True
    return False


def _standing(run_folder: Path) -> tuple[RunStarted | RunFinished | None, int]:
    """Return the last beginning or end of a command in the journal of a run, and the number of its events."""
    last, num_events = None, 0
    for num_events, event in enumerate(read_events(run_folder), 1):  # noqa: B007 - read at the end
        if event["event"] == "run_started" or event["event"] == "run_finished":
            last = event
    return last, num_events
