"""Ctrl-C that is not lost: an interrupt that a library swallows is raised again where Gradus next looks.

Python raises KeyboardInterrupt wherever the main thread happens to be; in a library's callback or clean-up it ends
there (seen inside Prefect: the run went on to its end and exited 0). So the handler also remembers it.
"""

import signal
import threading
from types import FrameType

_pending = threading.Event()


def remember_interrupts() -> None:
    """Handle SIGINT in this process from now on; call it in the main thread."""
    _pending.clear()
    signal.signal(signal.SIGINT, _interrupted)


def raise_if_interrupted() -> None:
    """KeyboardInterrupt where there has been an interrupt since `remember_interrupts`."""
    if _pending.is_set():
        raise KeyboardInterrupt


def _interrupted(_signal: int, _frame: FrameType | None) -> None:
    _pending.set()
    raise KeyboardInterrupt
