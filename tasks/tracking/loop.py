"""Send every journal event to a tracker exactly once: keep a cursor, retry while the tracker is down.

Does not know MLflow: a Teller sends the events and says whether a failure is the tracker's (wait, try again) or the
event's (note it, continue).
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from gradus.data.errors import LockedError
from gradus.tasks.runs.journal import EVENTS, event_lines
from gradus.tasks.runs.records import Event, Owner
from gradus.tasks.tracking.names import METRICS_PER_CALL
from gradus.tasks.tracking.state import State, sole_teller

POLL_S = 0.25
MAX_BACKOFF_S = 30.0
STILL_UNTOLD = 75
"""Exit code of a reporter that left something unsent (EX_TEMPFAIL)."""
_TAIL_BYTES = 1 << 16


class UnreachableError(Exception):
    """The tracker does not answer, or answers that it cannot now."""


class RefusedError(Exception):
    """The tracker answers that it will never take this event."""


class Teller(Protocol):
    """Sends events to a tracker; every method may raise UnreachableError, `tell` also RefusedError."""

    def tell(self, event: Event, state: State) -> None:
        """Send one event and note in the state what the next ones need."""
        ...

    def flush(self, state: State) -> None:
        """Send the state's backlog."""
        ...

    def close_as_killed(self, state: State) -> None:
        """End what is still open of an invocation whose process is gone."""
        ...


@dataclass
class Follower:
    """Sends one run's journal through tellers that it opens as needed.

    `owner` is the process whose end ends the reporting; none to send only what is there.
    """

    folder: Path
    open_teller: Callable[[], Teller]
    owner: int | None = None
    patience_s: float = 10.0
    num_sent: int = 0
    _teller: Teller | None = None
    _failing_since: float | None = None
    _backoff_s: float = field(default=POLL_S)

    def drain(self, wait_s: float = 0.0) -> int:
        """Report what is there; return the number of events reported.

        The reporter of a command that has just ended is waited for; LockedError if another process reports for longer.
        """
        until = time.monotonic() + wait_s
        while True:
            with sole_teller(self.folder) as mine:
                if mine:
                    self._until_ended()
                    return self.num_sent
            if time.monotonic() >= until:
                raise LockedError(
                    f"another process is telling MLflow about {self.folder.name}", hint="wait for it to end"
                )
            time.sleep(POLL_S)

    def follow(self) -> int:
        """Report until the run or its process has ended; return the exit code."""
        while True:
            with sole_teller(self.folder) as mine:
                if mine:
                    return 0 if self._until_ended() else STILL_UNTOLD
            time.sleep(POLL_S)  # the teller of a killed invocation is finishing

    def _until_ended(self) -> bool:
        """Return whether everything could be sent."""
        state = State.load(self.folder)
        while True:
            ended = self.owner is None or os.getppid() != self.owner or _ended(self.folder)
            is_sent = self._tell_all(state)
            if is_sent and ended:
                return self._end(state)
            if ended and self._patience_is_over():
                return False
            time.sleep(POLL_S)
            if not is_sent:
                self._back_off(ended)

    def _end(self, state: State) -> bool:
        if not _orphaned(state, self.owner):
            return True
        closed = self._guarded(state, lambda teller: teller.close_as_killed(state), what="the end")
        state.save(self.folder)
        return closed

    def _tell_all(self, state: State) -> bool:
        for event, offset in event_lines(self.folder, state.offset):
            if not self._guarded(state, lambda teller, e=event: teller.tell(e, state), what=event["event"]):
                return False
            state.offset = offset
            self.num_sent += 1
            state.save(self.folder)
            if len(state.backlog) >= METRICS_PER_CALL and not self._flush(state):
                return False
        return self._flush(state)

    def _flush(self, state: State) -> bool:
        if not state.backlog:
            return True
        if not self._guarded(state, lambda teller: teller.flush(state), what="metrics of the run"):
            return False
        state.backlog = []
        state.save(self.folder)
        return True

    def _guarded(self, state: State, act: Callable[[Teller], None], *, what: str) -> bool:
        """Return whether it was sent, or refused for good and noted; if not, the reporter is opened anew next time."""
        try:
            if self._teller is None:
                self._teller = self.open_teller()
            act(self._teller)
        except RefusedError as error:
            state.refused.append({"what": what, "at_byte": state.offset, "why": str(error)[:500]})
        except UnreachableError as error:
            self._teller = None
            # Back to what is on the disk, since this event may have been noted in part.
            vars(state).update(vars(State.load(self.folder)), problem=str(error)[:400])
            state.save(self.folder)
            self._failing_since = self._failing_since or time.monotonic()
            return False
        self._failing_since, self._backoff_s, state.problem = None, POLL_S, ""
        return True

    def _patience_is_over(self) -> bool:
        return self._failing_since is not None and time.monotonic() - self._failing_since > self.patience_s

    def _back_off(self, ended: bool) -> None:
        """Wait longer each time, but not past the end of the run."""
        until = time.monotonic() + (min(self._backoff_s, 1.0) if ended else self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        while time.monotonic() < until:
            time.sleep(POLL_S)
            if not ended and (os.getppid() != self.owner or _ended(self.folder)):
                return


def _orphaned(state: State, owner: int | None) -> bool:
    """Return whether an invocation is still open although its process is gone."""
    if not state.parent or not state.owner:
        return False
    if owner is not None:
        return os.getppid() != owner and state.owner.get("pid") == owner
    return not _lives(state.owner)


def _lives(owner: Owner) -> bool:
    """Return whether a process is there; one on another machine is taken to be."""
    if owner.get("host") != os.uname().nodename or "pid" not in owner:
        return True
    try:
        return psutil.Process(owner["pid"]).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ended(folder: Path) -> bool:
    """Return whether the journal's last whole line says that the run ended."""
    path = folder / EVENTS
    if not path.exists():
        return False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().split(b"\n")
    return len(lines) > 1 and lines[-2].startswith(b'{"event": "run_finished"')
