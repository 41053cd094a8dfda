"""The ranks of an update on this host, which do one job, or one after the other while they stay."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradus.models.processes.child import Child
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.settings import run_logs
from gradus.tasks.host.processes import child_environment
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.update.launch.invitation import invited
from gradus.tasks.stages.update.launch.job import RankJob

AGAIN_S = 0.1
LEAVE_S = 5.0
"""Seconds in which ranks that have done their work leave by themselves."""
_FOLDER = "launch"
"""Holds the folder of a group: in the run's logs if it stays, else in the output's scratch folder."""
_RANK = [sys.executable, "-P", "-m", "gradus.tasks.stages.update.launch.rank"]

Note = dict[str, Any]
"""A message of gradus.tasks.stages.update.launch.rank with its `rank`, or one of kind "ended" with its exit `code`."""


class RankGroup:
    """Ranks that were started for a job; `first` is the number of the first one on this host."""

    def __init__(self, job: RankJob, folder: Path, first: int = 0) -> None:
        """Start them; in `folder` the processes of one host meet, and other hosts leave word of what went wrong."""
        self.id, self.stays, self.folder, self._first = job.id, job.stays, folder, first
        self._config = job.update_config()
        launch = self._config.launch
        self.names = list[str]()
        """Name of every rank for a sentence, once they have met."""
        self.has_begun = False
        """True once a rank has begun the last job."""
        self.failures: list[Note] = []
        """Errors of ranks, and ends of them."""
        self.open_to = ExitStack()
        """The invitation of other hosts."""
        there = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
        shared = {
            "OMP_NUM_THREADS": str(max(1, there // launch.processes)),  # those of this process, divided
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
        self.open_to.close()


def rank_name(rank: int, num_ranks: int, pid: object) -> str:
    """Return the name of a rank of this host for a sentence."""
    return f"rank {rank} of {num_ranks} (process {pid} on {socket.gethostname()})"


def place_of(ctx: StageContext, config: UpdateConfig) -> tuple[Path, bool]:
    """Return where a group of ranks has its folder, and whether it stays: a run's does, if the settings want it."""
    logs = run_logs()
    if logs is None or config.between_updates == "disk":
        return ctx.out.scratch / _FOLDER, False
    return logs / _FOLDER, True


def begun(job: RankJob, place: Path) -> RankGroup:
    """Start the ranks of a first job on this host, in a folder below `place`, and invite other hosts.

    What lay in `place` is removed.
    """
    shutil.rmtree(place, ignore_errors=True)
    folder = place / job.id
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(invited(asdict(job), folder, job.update_config().launch, run_logs()))
        group = RankGroup(job, folder)
        group.open_to = stack.pop_all()
        return group
