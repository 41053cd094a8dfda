"""Progress of the reporter: how far the journal was sent, and the process that sends it.

`<run folder>/tracking.json` holds one number, the bytes of the journal that were sent, and what a user should know of
it. If it is lost or torn, reporting begins anew, and repeats nothing: sending twice changes nothing in MLflow.
"""

import contextlib
import fcntl
import json
import shlex
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gradus.data.errors import CorruptArtifactError
from gradus.data.files import replace_file
from gradus.tasks.runs.journal import event_lines

STATE = "tracking.json"
_LOCK = ".tracking.lock"


class UnreachableError(Exception):
    """The tracker does not answer, or answers that it cannot now."""


class RefusedError(Exception):
    """The tracker answers that it will never take this event."""


@dataclass
class State:
    """Progress of the reporter."""

    offset: int = 0
    """Bytes of the journal that were sent."""
    problem: str = ""
    """Reason that the tracker does not answer."""
    refused: list[str] = field(default_factory=list)
    """Events that MLflow would not take, with its reasons."""

    def save(self, folder: Path) -> None:
        """Replace the file whole."""
        replace_file(folder / STATE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "State":
        """The saved state; a fresh one if there is none or it cannot be read."""
        try:
            body = json.loads((folder / STATE).read_text(encoding="utf-8"))
            return cls(int(body["offset"]), str(body["problem"]), list(map(str, body["refused"])))
        except (OSError, ValueError, TypeError, KeyError):
            return cls()


@dataclass(frozen=True)
class Status:
    """Number of events of a run that the tracker does not have yet; `telling` where a process is sending them."""

    run: str
    untold: int
    refused: int = 0
    problem: str = ""
    reason: str = ""
    telling: bool = False

    @property
    def sentence(self) -> str:
        """Return what a user should know, with the command that helps; empty if all is reported or will be."""
        if self.untold and self.telling and not self.problem:
            return ""  # its reporter is at it, without this command
        if self.untold:
            why = f" ({self.problem})" if self.problem else ""
            telling = f"`gradus sync {shlex.quote(self.run)}`"
            return f"MLflow has not been told {self.untold} events{why}; tell it with {telling}"
        if self.refused:
            return f"MLflow refused {self.refused} events of {self.run}: {self.reason}"
        return ""


def status(folder: Path) -> Status:
    """Return the number of events of a run that the tracker does not have yet."""
    state = State.load(folder)
    problem, untold = state.problem, 0
    try:
        untold = sum(1 for _ in event_lines(folder, state.offset))
    except CorruptArtifactError as error:  # said here, raised where the journal is needed: the run itself is well
        problem, untold = str(error), 1
    return Status(folder.name, untold, len(state.refused), problem, state.refused[-1] if state.refused else "")


@contextlib.contextmanager
def sole_teller(folder: Path) -> Generator[bool]:
    """Hold the run's tracking lock; False if another process reports already. The kernel frees it at exit."""
    with (folder / _LOCK).open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


@contextlib.contextmanager
def setup_lock(folder: Path) -> Generator[None]:
    """Hold the lock under which the embedded database is created: processes that do it at the same time break it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".setup.lock").open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
