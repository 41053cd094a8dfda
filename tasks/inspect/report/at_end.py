"""The report at the end of a training: written by a process of its own, so that no failure of it is the training's."""

import json
import subprocess
import sys
from pathlib import Path

from gradus.data.errors import in_words
from gradus.tasks.host.isolation import child_environment
from gradus.tasks.runs.records import Status

FILE = "report.html"
"""In the folder of the run, from where the reporter takes it to MLflow."""
LIMIT_S = 120.0


def write_at_end(home: Path, folder: Path, status: Status, error: str) -> str:
    """Write the report of a run that ends as `status`; return a sentence if that failed, else an empty text.

    Takes LIMIT_S at most. An earlier report of the run is removed first: it would not tell how the run ended.
    """
    try:
        (folder / FILE).unlink(missing_ok=True)
        ending = json.dumps({"status": status, "error": error})
        command = [sys.executable, "-P", "-m", "gradus.tasks.inspect.report.writing", folder.name, str(folder / FILE)]
        done = subprocess.run(
            [*command, "--ending", ending],
            env=child_environment({"GRADUS_HOME": str(home)}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
        lines = done.stderr.strip().splitlines()
        why = "" if done.returncode == 0 else (lines or [f"its process ended with {done.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        why = f"it took longer than {LIMIT_S:.0f} s"
    except OSError as failure:
        why = in_words(failure).message
    return f"the report was not written: {why}; try `gradus report {folder.name}`" if why else ""
