"""Ctrl-C and SIGTERM that are not lost, and end a command with a sentence.

    stop_at_once()              # while nothing is begun: the sentence, and the process ends
    remember_interrupts()       # from then on KeyboardInterrupt, so that what is open is closed

Python raises KeyboardInterrupt wherever the main thread happens to be; in a library's callback or clean-up it ends
there (seen inside Prefect: the run continued to its end and exited 0). So the handler also remembers it. While a flow
runs, Prefect has a handler of its own for SIGTERM; it calls ours when the flow has ended.
The program imports this before all else, so it imports little itself.
"""

import os
import signal
import sys
from types import FrameType

SENTENCES = {
    signal.SIGINT: "stopped; run the same command again to resume",
    signal.SIGTERM: "ended by SIGTERM; run the same command again to resume",
}
_pending: list[signal.Signals] = []


def stop_at_once() -> None:
    """End this process at a signal from now on, with its sentence; call it in the main thread."""
    for number in SENTENCES:
        signal.signal(number, _stopped)


def remember_interrupts() -> None:
    """Raise KeyboardInterrupt at a signal from now on; call it in the main thread."""
    _pending.clear()
    for number in SENTENCES:
        signal.signal(number, _interrupted)


def raise_if_interrupted() -> None:
    """KeyboardInterrupt if there has been a signal since `remember_interrupts`."""
    if _pending:
        raise KeyboardInterrupt


def interrupted_by() -> signal.Signals | None:
    """Return the first signal since `remember_interrupts`."""
    return _pending[0] if _pending else None


def forget_interrupts() -> signal.Signals | None:
    """Forget the signals since `remember_interrupts`; return the first."""
    first = interrupted_by()
    _pending.clear()
    return first


def _interrupted(number: int, _frame: FrameType | None) -> None:
    _pending.append(signal.Signals(number))
    raise KeyboardInterrupt


def _stopped(number: int, _frame: FrameType | None) -> None:
    try:  # noqa: SIM105 - contextlib would be one more import before anything is heard
        sys.stdout.flush()
    except (OSError, ValueError, RuntimeError):
        pass  # a reader that is gone, or the signal came while this stream was written to
    if not _pending:  # its message is printed already
        os.write(2, f"{SENTENCES[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)
