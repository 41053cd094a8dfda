"""Imported by the program before all else: undo what the surroundings did to this process before it could say no.

PYTHONWARNINGS=error would end it at an import of somebody else's library, and an empty entry of PYTHONPATH, or `.`,
lets a `typing.py` in the current folder be imported for Python's. Until the program is imported it collects no garbage,
a tenth of that time, and a signal ends it with a sentence.
"""

import gc
import os
import sys
import warnings

_IGNORED = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
"""The categories that Python ignores by default."""


def forget_warnings() -> None:
    """Put the warning filters back to Python's own if PYTHONWARNINGS changed them."""
    if os.environ.pop("PYTHONWARNINGS", ""):
        warnings.resetwarnings()
        for category in _IGNORED:
            warnings.simplefilter("ignore", category)


def forget_current_folder() -> None:
    """Take the current folder off the module path if an empty entry of PYTHONPATH, or `.`, put it there."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.environ.get("PYTHONPATH") else []
    here = os.getcwd()  # noqa: PTH109 - pathlib could be the folder's own
    if here not in entries and any(not entry or os.path.normpath(entry) == os.curdir for entry in entries):
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]


forget_warnings()
forget_current_folder()

from gradus.tasks.host.interrupt import remember_interrupts, stop_at_once  # noqa: E402 - its imports might be the folder's


def imported() -> None:
    """Collect garbage again; a signal raises an exception again, for the program to close what it has open."""
    gc.enable()
    remember_interrupts()


gc.disable()
stop_at_once()
