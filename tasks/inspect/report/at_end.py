"""The report at the end of a training: written by a process of its own, so that no failure of it is the training's."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

from gradus.data.errors import in_words
from gradus.tasks.host.processes import child_environment
from gradus.tasks.runs.records import Status
from gradus.tasks.tracking.facts import REPORT_PAGE, SAMPLE_TABLE

LIMIT_S = 120.0


def write_at_end(home: Path, folder: Path, status: Status | None = None, error: str = "") -> str:
    """Write report and table of samples of a training, in LIMIT_S; return a sentence if that failed, else "".

    `status` is how the run ends, if its journal does not say so yet. What an earlier command left is removed first.
    """
    page, table = folder / REPORT_PAGE, folder / SAMPLE_TABLE
    command = [sys.executable, "-P", "-m", "gradus.tasks.inspect.report.writing", folder.name, str(page), str(table)]
    try:
        page.unlink(missing_ok=True)
        table.unlink(missing_ok=True)
        done = subprocess.run(
            command,
            env=child_environment({"GRADUS_HOME": str(home)}),
            input=json.dumps({"status": status, "error": error} if status else None),
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
    return f"the report was not written: {why}; try `gradus report {shlex.quote(folder.name)}`" if why else ""
