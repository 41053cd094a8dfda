"""One rank of an update: a process that torchrun started below the stage's worker.

    python -m gradus.tasks.stages.update.launch.rank JOB.json

It does what the stage does on one device, with its share of every step's packs and of the parameters. Rank 0 writes
the files and reports.
"""

import os
import socket
import sys
import traceback
from pathlib import Path

from gradus.data.errors import GradusError, in_words
from gradus.tasks.config.redaction import hide, hide_in_logs
from gradus.tasks.host.imports import lean_imports
from gradus.tasks.host.isolation import die_with_parent
from gradus.tasks.stages.update.launch.job import RANK_PARENT
from gradus.tasks.stages.update.launch.mail import Mail, Note


def main() -> None:
    """Do the job; exit with 1 if it fails, though other threads still wait for other ranks."""
    die_with_parent(int(os.environ[RANK_PARENT]))
    hide_in_logs()
    path, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    writer = Mail(path.parent).writer(f"rank-{rank}")
    writer.send({"kind": "here", "rank": rank, "host": socket.gethostname(), "pid": os.getpid()})
    try:
        with lean_imports("pandas", "scipy", "sklearn"):
            from gradus.tasks.stages.update.launch.work import work  # noqa: PLC0415 - torch takes seconds to import
        note = work(path, writer)
    except Exception as error:  # noqa: BLE001 - whatever is raised must reach the stage
        traceback.print_exc()
        note = _failed(error, rank)
    if note is not None:
        writer.send(note)
        sys.stderr.flush()
        os._exit(1)


def _failed(error: Exception, rank: int) -> Note:
    plain = in_words(error)
    return {
        "kind": "error",
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "type": type(error).__name__,
        "known": isinstance(error, GradusError),
        "message": hide(plain.message),
        "hint": plain.hint,
    }


if __name__ == "__main__":
    main()
