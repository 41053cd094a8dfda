"""Working folders of judges: temporary, named by the process that starts the judges."""

import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "gradus-judge-"


def make_folder() -> Path:
    """Return a new folder for one judge of this process: what hostile code leaves there no other judge sees."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def remove_folders(pid: int) -> None:
    """Remove the folders of the judges that a process started; call it once that process has ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{pid}-*"):
        shutil.rmtree(folder, ignore_errors=True)
