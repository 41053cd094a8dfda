"""torchrun for the ranks of an update on this host, ended with the process that started it.

    python -m gradus.tasks.stages.update.launch.agent JOB PARENT_PID host|guest

On one host the processes meet in a file, so that nothing listens on the network; several hosts meet at the address
`rendezvous` of the settings, which the first one, `host`, opens. Failures of ranks are reported by mail.
"""

import os
import socket
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from gradus.tasks.host.isolation import die_with_parent
from gradus.tasks.stages.update.launch.job import RANK_PARENT, RankJob
from gradus.tasks.stages.update.launch.mail import Mail, Writer

_RANK = "gradus.tasks.stages.update.launch.rank"
_JOIN_S = 900
"""Seconds that torchrun waits for the other hosts."""


def main() -> None:
    """Run the ranks of this host; exit with 1 if one failed."""
    path, parent, role = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    die_with_parent(parent)
    os.environ[RANK_PARENT] = str(os.getpid())
    job = RankJob.read(path)
    launch = job.update_config().launch
    if launch.hosts == 1:
        meeting = ["--rdzv-endpoint", str(path.with_name("rendezvous")), "--rdzv-conf", "store_type=file"]
    else:
        is_host = "true" if role == "host" else "false"
        meeting = ["--rdzv-endpoint", launch.rendezvous, "--rdzv-conf", f"is_host={is_host},join_timeout={_JOIN_S}"]
    words = [
        *("--nnodes", str(launch.hosts), "--nproc-per-node", str(launch.processes), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-id", job.id, *meeting),
        *("--log-dir", str(path.with_name("torchrun")), "--module", _RANK, str(path)),
    ]
    try:
        run(parse_args(words))
    except ChildFailedError as error:
        _tell(error, Mail(path.parent).writer(f"agent-{socket.gethostname()}-{os.getpid()}"))
        sys.exit(1)


def _tell(error: ChildFailedError, writer: Writer) -> None:
    for rank, failure in error.failures.items():
        code = failure.exitcode
        writer.send(
            {
                "kind": "ended",
                "rank": rank,
                "host": socket.gethostname(),
                "pid": failure.pid,
                "signal": max(0, -code),
                "exit_code": code,
            }
        )


if __name__ == "__main__":
    main()
