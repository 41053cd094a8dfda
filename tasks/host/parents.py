"""Processes that end with the one that started them, however that ends.

    die_with_parent(os.getppid())     # first of all in a child; the parent that it expects

Linux only: elsewhere a child that nobody ends outlives its parent.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(expected: int) -> None:
    """Be killed when the parent dies; end at once if `expected` is not the parent any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != expected:
            os.kill(os.getpid(), signal.SIGKILL)
