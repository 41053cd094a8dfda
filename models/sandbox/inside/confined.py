"""A command of ours in namespaces of its own, with the rights of this user and a view of some files alone."""

import json
import os
import sys
from typing import NoReturn

from gradus.models.sandbox.inside import linux
from gradus.models.sandbox.inside.cell import SCRATCH, mount_own
from gradus.models.sandbox.inside.filter import refuse_calls
from gradus.models.sandbox.inside.zygote import enter

_NEW = linux.NEW_PIDS | linux.NEW_MOUNTS | linux.NEW_HOSTNAME


def main() -> None:
    """Enter the namespaces, run the command of the arguments, and end as it ends."""
    config, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        enter(config["folders"])
        linux.unshare(_NEW)
    except OSError as error:
        sys.exit(f"the sandbox cannot be entered: {error}")
    first = os.fork()
    if first == 0:
        _first(command, config["disk"])
    _end_like(first)


def _first(command: list[str], disk_bytes: int) -> NoReturn:
    """Process 1, which the kernel keeps from the default action of signals: the command is a child of it."""
    linux.die_with_parent()
    mount_own(SCRATCH, disk_bytes)
    child = os.fork()
    if child == 0:
        os.chdir(SCRATCH)
        os.environ.update(HOME=SCRATCH, TMPDIR=SCRATCH)
        linux.drop_rights({}, keep_user=True)
        refuse_calls()
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    _end_like(child)


def _end_like(child: int) -> NoReturn:
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            # A signal as a shell says it: process 1 cannot end by one.
            os._exit(code if code >= 0 else 128 - code)
