"""The program in one process that stays: commands one after the other, without the imports of each.

    python -P -m tests.e2e.warm      # a JSON line a command on stdin; its exit code on stdout

For tests of what a training computes; the start, end and interruption of a process are tested by `Program`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from gradus.flows.cli.main import main
from gradus.tasks.runtime import supervise
from gradus.tasks.runtime.supervise import MadeOf, keeping_workers

OF_A_COMMAND = {"GRADUS_HOME", "PREFECT_HOME", "PREFECT_RESULTS_LOCAL_STORAGE_PATH", "COLUMNS"}
"""Variables by which a worker may differ from the command that takes it over: its jobs name their folders."""


def _shared(made_of: MadeOf) -> MadeOf:
    kind, execute, environment = made_of
    return kind, execute, tuple(each for each in environment if each[0] not in OF_A_COMMAND)


class Worker(supervise.Worker):
    """A worker that the commands of all homes share."""

    def __init__(self, made_of: MadeOf, log_path: Path) -> None:
        super().__init__(_shared(made_of), log_path)


class KeptWorkers(supervise.KeptWorkers):
    """Keep workers from home to home."""

    def take(self, made_of: MadeOf, log_path: Path) -> supervise.Worker | None:
        """Return a worker for a command of another home, too."""
        return super().take(_shared(made_of), log_path)


def run(words: list[str]) -> int:
    """Run a command; return its exit code."""
    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def command(asked: dict[str, Any]) -> int:
    """Run a command in its folder and environment, its output in two files, which may be one."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["folder"])
    for number, name in ((1, asked["stdout"]), (2, asked["stderr"])):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    try:
        return run(asked["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def serve() -> None:
    """Run commands until there are no more."""
    supervise.Worker = Worker
    supervise.KeptWorkers = KeptWorkers
    answers = os.fdopen(os.dup(1), "w")
    with keeping_workers():
        for line in sys.stdin:
            print(command(json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    serve()
