"""The reporter: reads a run's journal and sends it to MLflow, in a process of its own.

    python -m gradus.tasks.tracking.reporter RUN_FOLDER --owner PID     # follows a living run, ends with it
    python -m gradus.tasks.tracking.reporter RUN_FOLDER --drain         # sends what is there and ends

The only state is how far the journal was sent; sending twice changes nothing (gradus.tasks.tracking.sending). While the
tracker is down the journal waits.
"""

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import psutil

from gradus.data.errors import LockedError, StageError
from gradus.data.runlock import sole
from gradus.tasks.config.redaction import hide_in_logs, hide_in_output
from gradus.tasks.config.settings import Home, tracking_patience_s
from gradus.tasks.runs.journal import EVENTS, event_lines, last_end, num_bytes
from gradus.tasks.runs.records import Owner
from gradus.tasks.tracking.client import RefusedError, State, UnreachableError, status
from gradus.tasks.tracking.sending import Sender

POLL_S = 0.25
MAX_BACKOFF_S = 30.0
STILL_UNTOLD = 75
"""Exit code of a reporter that left something unsent (EX_TEMPFAIL)."""


@dataclass
class Follower:
    """Sends one run's journal through a reporter, which it opens anew after a failure of the tracker.

    `owner` is the process whose end ends the reporting; none to send only what is there.
    """

    folder: Path
    open_sender: Callable[[], Sender]
    owner: int | None = None
    patience_s: float = 10.0
    num_sent: int = 0
    _sender: Sender | None = None
    _read: int = 0
    """Bytes of the journal that the open reporter knows."""
    _failing_since: float | None = None
    _backoff_s: float = POLL_S

    def follow(self, wait_s: float = math.inf) -> bool:
        """Report until the run or its process has ended; return whether everything could be sent.

        The reporter of a command that has just ended, or was killed, is waited for; LockedError if that takes longer.
        """
        until = time.monotonic() + wait_s
        while True:
            with sole(self.folder / EVENTS, wait=False) as mine:
                if mine:
                    return self._until_ended()
            if time.monotonic() >= until:
                raise LockedError(
                    f"another process is telling MLflow about {self.folder.name}", hint="wait for it to end"
                )
            time.sleep(POLL_S)

    def _until_ended(self) -> bool:
        """Return whether everything could be sent."""
        state = State.load(self.folder)
        if state.offset > num_bytes(self.folder):  # of a journal that was moved away
            state = State()
        while True:
            ended = self._has_ended
            is_sent = self._caught_up(state, ended=ended)
            if is_sent and ended:
                return True
            if ended and self._failing_since and time.monotonic() - self._failing_since > self.patience_s:
                return False
            time.sleep(POLL_S)
            if not is_sent:
                self._back_off(ended=ended)

    def _caught_up(self, state: State, *, ended: bool) -> bool:
        """Send what is new; return False if the tracker does not answer."""
        try:
            if self._sender is None:
                self._sender, self._read = self.open_sender(), 0
            sender = self._sender
            for event, end in event_lines(self.folder, self._read):
                is_new = end > state.offset
                with self._noting(state, end):
                    sender.take(event, is_new=is_new)
                self._read = end
                if is_new:
                    self.num_sent += 1
                    if not sender.waits_for_more:
                        self._save(state, sender, end)
            self._save(state, sender, self._read)
            if ended and _orphaned(sender.fold.owner, self.owner):
                with self._noting(state, self._read):
                    sender.close_as_killed()
        except UnreachableError as error:
            self._sender = None  # what it knows is read again
            state.problem = str(error)[:400]
            state.save(self.folder)
            self._failing_since = self._failing_since or time.monotonic()
            return False
        self._failing_since, self._backoff_s = None, POLL_S
        return True

    def _save(self, state: State, sender: Sender, end: int) -> None:
        if end > state.offset or state.problem:
            with self._noting(state, end):
                sender.flush()
            state.offset, state.problem = max(end, state.offset), ""
            state.save(self.folder)

    @contextlib.contextmanager
    def _noting(self, state: State, at_byte: int) -> Generator[None]:
        """Note what is sent in this block if MLflow will never take it."""
        try:
            yield
        except RefusedError as error:
            text = f"{str(error)[:500]} (at byte {at_byte})"
            state.refused += [text] if text not in state.refused else []
            state.save(self.folder)

    @property
    def _has_ended(self) -> bool:
        if self.owner is None or os.getppid() != self.owner:
            return True
        found = last_end(self.folder)
        return bool(found) and "run_started" not in {event["event"] for event in found}

    def _back_off(self, *, ended: bool) -> None:
        """Wait longer each time, but not past the end of the run."""
        until = time.monotonic() + (min(self._backoff_s, 1.0) if ended else self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        while time.monotonic() < until and (ended or not self._has_ended):
            time.sleep(POLL_S)


def _orphaned(owner: Owner, follows: int | None) -> bool:
    """Return whether a command is still open although its process is gone; one on another machine is taken to live."""
    if follows is not None:
        return os.getppid() != follows and owner.get("pid") == follows
    if owner.get("host") != os.uname().nodename or "pid" not in owner:
        return False
    try:
        return psutil.Process(owner["pid"]).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def drain(folder: Path, wait_s: float = 0.0) -> int:
    """Report to MLflow what is new in a run's journal; return the number of events.

    A reporter that is at it is waited for; LockedError if it takes longer than `wait_s`.
    """
    follower = _follower(folder, owner=None)
    follower.follow(wait_s)
    left = status(folder)
    if left.untold:
        raise StageError(left.sentence, hint="start the tracker first (`gradus ui`), or see MLFLOW_TRACKING_URI")
    return follower.num_sent


def forget(folder: Path) -> int:
    """Mark what MLflow has of a run as deleted; return the number of its runs there. UnreachableError if it is down."""
    return Sender(folder, Home.from_environment()).forget()


def _follower(folder: Path, owner: int | None) -> Follower:
    home = Home.from_environment()
    return Follower(folder, lambda: Sender(folder, home), owner=owner, patience_s=tracking_patience_s())


def main() -> None:
    """Tell one run; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m gradus.tasks.tracking.reporter")
    parser.add_argument("folder", type=Path)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--owner", type=int, help="process whose end ends the telling")
    how.add_argument("--drain", action="store_true", help="tell what is there and end")
    options = parser.parse_args()
    os.nice(10)  # the run itself goes first
    hide_in_output()
    hide_in_logs()
    sys.exit(0 if _follower(options.folder, options.owner).follow() else STILL_UNTOLD)


if __name__ == "__main__":
    main()
