"""Progress of the reporter: a cursor that survives any kill, and the process that reports.

`<run folder>/tracking.json` is replaced whole after every event that was sent. If it is lost or torn, reporting begins
anew; that repeats nothing, because every event is looked up by its name before it is sent (see
gradus.tasks.tracking.reporter).
"""

import contextlib
import fcntl
import json
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict

from gradus.data.errors import CorruptArtifactError
from gradus.data.files import replace_file
from gradus.data.records import JsonObject
from gradus.tasks.runs.journal import EVENTS, read_lines
from gradus.tasks.runs.records import Label, Owner

STATE = "tracking.json"
_LOCK = ".tracking.lock"


class Live(Label):
    """An attempt that has not ended, with its settings and its inputs by role."""

    config: JsonObject
    inputs: dict[str, list[str]]


class Refusal(TypedDict):
    """An event that MLflow would not take."""

    what: str
    at_byte: int
    why: str


@dataclass
class State:
    """State of the reporter between two events.

    `offset` counts the bytes of the journal that were sent; `parent` is the MLflow run of ours while an invocation is
    open, which began at byte `begun_at` and belongs to the process `owner`; `origin` holds the tags that say which
    launch and which commit it is; `runs` maps an attempt of it to its MLflow run, `live` holds the facts of those still
    open; `traces` counts traces by round; `backlog` holds metrics of the parent (name, value, time in ms, step) that
    wait for the next batch; `zeros` points (time in ms, step) of metrics whose 0 is nothing to look at, until they are
    `loud`; `others` the names of metrics that a recipe makes more of; `totals` what the run used so far, and `seconds`
    how long its commands took; the invocation began at `begun_ms` and last said something at `time_ms`; `resumed` is
    whether an earlier one has its metrics in the same row, `note` what it left there, `reuses` the number since then
    that computed nothing; `ends_only` is whether it evaluates at its ends alone; `figures` is what its evaluations of
    the first suite found; `about` the lines of its note that are known from its beginning; `datasets` its reported
    inputs; `refused` what MLflow would not take, with its reason.
    """

    offset: int = 0
    run: str = ""
    parent: str = ""
    owner: Owner = field(default_factory=Owner)
    runs: dict[str, str] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    begun_at: int = 0
    traces: dict[str, int] = field(default_factory=dict)
    backlog: list[tuple[str, float, int, int]] = field(default_factory=list)
    zeros: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    loud: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)
    ends_only: bool = False
    resumed: bool = False
    seconds: float = 0.0
    note: str = ""
    reuses: int = 0
    begun_ms: int = 0
    time_ms: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    about: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    problem: str = ""

    def begin(self, run: str, owner: Owner, origin: dict[str, str], *, resumed: bool) -> None:
        """Begin with the next invocation; what is known of the run is forgotten unless it continues in the same row."""
        self.origin, self.resumed = origin, resumed
        self.run, self.owner, self.parent, self.begun_at = run, owner, "", self.offset
        self.runs, self.live, self.backlog = {}, {}, []
        if resumed:
            return
        self.seconds, self.note, self.reuses = 0.0, "", 0
        self.traces, self.zeros, self.totals, self.figures = {}, {}, {}, {}
        self.loud, self.others, self.about, self.datasets = [], [], [], []

    def add(self, name: str, amount: float) -> None:
        """Add to a total of the run."""
        self.totals[name] = self.totals.get(name, 0.0) + amount

    def save(self, folder: Path) -> None:
        """Replace the file whole."""
        replace_file(folder / STATE, json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> "State":
        """The saved state; a fresh one where there is none or it cannot be read."""
        try:
            return cls(**json.loads((folder / STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
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
            return f"MLflow has not been told {self.untold} events{why}; tell it with `gradus sync {self.run}`"
        if self.refused:
            return f"MLflow refused {self.refused} events of {self.run}: {self.reason}"
        return ""


def status(folder: Path) -> Status:
    """Return the number of events of a run that the tracker does not have yet."""
    state = State.load(folder)
    problem, untold = state.problem, int(bool(state.backlog))
    try:
        untold += sum(1 for _ in read_lines(folder / EVENTS, state.offset))
    except CorruptArtifactError as error:  # said here, raised where the journal is needed: the run itself is well
        problem, untold = str(error), untold + 1
    reason = state.refused[-1]["why"] if state.refused else ""
    return Status(folder.name, untold, len(state.refused), problem, reason)


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
