"""Jobs that the tests of workers run in a child process: some behave, some do not."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradus.data.errors import GateError
from gradus.tasks.host.processes import Warm

FOREVER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


KEPT: list[Any] = []


@dataclass
class Jobs:
    """What a worker counted so far."""

    count: int = 0


def judge_a_row() -> None:
    """Leave a warm judge behind, as a stage that scores does."""
    from gradus.models.judging.pool import JudgePool
    from gradus.models.rewards import resolve

    KEPT.append(JudgePool(resolve("exact", {}), num_workers=1))
    KEPT[-1].judge([{"completion": "1", "answer": "1"}])


def load_a_component() -> None:
    """Load a user's loss, as an update does."""
    from gradus.components.chosen import Chosen
    from gradus.tasks.identity.loading import load

    class Loss(Chosen, kind="loss"):
        pass

    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write("def mine(logp):\n    return logp\n")
        file.flush()
        load(Loss(name=f"{file.name}:mine"))


def execute(  # noqa: C901 - a case a job
    job: dict[str, Any], warm: Warm, beat: Callable[..., None]
) -> dict[str, Any]:
    """Do what the job says."""
    sys.stdout.write("noise on stdout that is no protocol\n")
    sys.stdout.flush()
    beat(0.5, "half-way")
    match job["do"]:
        case "count":
            warm.of(Jobs).count += 1
        case "gate":
            raise GateError("the limit was breached", hint="raise it")
        case "raise":
            raise ValueError("no such thing")
        case "where":
            return {"logs": os.environ["GRADUS_RUN_LOGS"], "pid": os.getpid()}
        case "load":
            load_a_component()
        case "judge":
            judge_a_row()
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            10 ** (10**9)  # one call in C that holds the interpreter lock
        case "sleep":
            time.sleep(600)
        case "child":
            child = subprocess.Popen([sys.executable, "-c", FOREVER], process_group=job.get("group"))
            time.sleep(0.5)
            return {"child": child.pid, "pid": os.getpid()}
        case "orphan":
            child = subprocess.Popen([sys.executable, "-c", FOREVER], start_new_session=True)
            time.sleep(0.5)
            return {"child": child.pid, "pid": os.getpid()}
    return {"count": warm.of(Jobs).count, "pid": os.getpid()}
