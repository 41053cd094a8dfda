"""One rank of an update: a child of the stage's worker, or of `gradus join` on another host.

    python -m gradus.tasks.stages.update.launch.rank PARENT_PID

It does what the stage does on one device, with its share of every step's packs and of the parameters. Rank 0 writes
the files and reports. Messages to the parent, by `kind`: "here" with the `names` of all ranks (from rank 0), "begun"
with the `output` of a job, "beat" (from rank 0), "done" with the `result` (None but from rank 0), "error"
(gradus.tasks.host.processes), and "memory" with `num_tokens`, how many to begin anew with.
"""

import os
import sys
import traceback

from gradus.models.processes.parent import Parent
from gradus.tasks.config.redaction import hide_in_logs
from gradus.tasks.host.libraries import lean_imports
from gradus.tasks.host.processes import die_with_parent, failed


def main() -> None:
    """Do the jobs that come; exit with 1 if one fails, though other threads still wait for other ranks."""
    die_with_parent(int(sys.argv[1]))
    parent = Parent()
    hide_in_logs()
    code = 1
    try:
        with lean_imports("pandas", "scipy", "sklearn"):
            from gradus.tasks.stages.update.launch.work import work  # noqa: PLC0415 - torch takes seconds to import
        code = work(parent)
    except Exception as error:  # noqa: BLE001 - whatever is raised must reach the stage
        traceback.print_exc()
        parent.send(failed(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
