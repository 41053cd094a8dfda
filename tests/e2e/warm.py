"""The program in one process that stays: commands one after the other, without the imports of each.

    python -P -m tests.e2e.warm      # a JSON line a command on stdin; its exit code on stdout

For tests of what a training computes; the start, end and interruption of a process are tested by `Program`.
"""

import json
import os
import sys
from typing import Any

from gradus.flows.cli.main import main
from gradus.tasks.runtime.kept_workers import keeping_workers


def run(words: list[str]) -> int:
    """Run a command; return its exit code."""
    try:
        main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def command(asked: dict[str, Any]) -> int:
    """Run a command in its folder and environment, its output in the files `stdout` and `stderr` there."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["home"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    try:
        return run(asked["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def serve() -> None:
    """Run commands until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    with keeping_workers():
        for line in sys.stdin:
            print(command(json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    serve()
