"""A group of ranks below torchrun, which does one update, or one after the other while it stays."""

import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from gradus.models.processes.tree import kill_tree
from gradus.tasks.config.learning import LaunchConfig, UpdateConfig
from gradus.tasks.config.settings import run_logs
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.update.launch.invitation import invited
from gradus.tasks.stages.update.launch.job import RankJob
from gradus.tasks.stages.update.launch.mail import Mail, Note
from gradus.tasks.stages.update.launch.starting import start_agent

_FOLDER = "launch"
"""Holds the folder of a group: in the run's logs if it stays, else in the output's scratch folder."""


@dataclass
class RankGroup:
    """Ranks that have begun, their torchrun and their messages."""

    id: str
    launch: LaunchConfig
    device: str
    folder: Path
    agent: "subprocess.Popen[bytes]"
    mail: Mail
    stays: bool
    notes: list[Note] = field(default_factory=list[Note])
    """Their messages except beats: of their start, and of the last job."""
    num_jobs: int = 1
    """Jobs that they were asked to do."""
    _invitation: ExitStack = field(default_factory=ExitStack)

    @property
    def is_done(self) -> bool:
        """Return whether they said that the last job is done."""
        return any(note["kind"] == "done" for note in self.notes)

    def serves(self, config: UpdateConfig) -> bool:
        """Return whether this group can run the update: same number of ranks and device, all alive."""
        return self.agent.poll() is None and (self.launch, self.device) == (config.launch, config.device)

    def ask(self, job: RankJob) -> None:
        """Have them do another job, their last one unless it says that they stay."""
        self.notes[:] = [note for note in self.notes if note["kind"] == "here"]
        self.num_jobs, self.stays = job.number + 1, job.stays
        job.write(self.folder)

    def end(self) -> None:
        """End torchrun and all ranks of this host; those of others follow."""
        kill_tree(self.agent.pid)
        self.agent.wait()
        self._invitation.close()


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
    path, config = job.write(folder), job.update_config()
    with ExitStack() as stack:
        stack.enter_context(invited(path, config.launch, run_logs()))
        agent = start_agent(path, config.launch, role="host")
        return RankGroup(
            job.id, config.launch, config.device, folder, agent, Mail(folder), job.stays, _invitation=stack.pop_all()
        )
