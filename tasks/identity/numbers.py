"""The number of a schedule: ours is called here, a user's or an installed one in a process of its own.

number_of(chosen, Progress(round=3))     # python -m gradus.tasks.identity.numbers < {"chosen": ..., "now": ...}
"""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import lru_cache

from gradus.components.chosen import ScheduleConfig
from gradus.data.errors import BadInputError, GradusError
from gradus.data.schedules.progress import Progress, ScheduleError
from gradus.tasks.host.isolation import child_environment, die_with_parent
from gradus.tasks.identity.loading import load

_LIMIT_S = 60.0


def number_of(chosen: ScheduleConfig, now: Progress) -> float:
    """Return the number of a schedule, which is the same for the same progress.

    Raise ScheduleError if its settings make none, BadInputError if a function that is not ours fails.
    """
    if chosen.is_ours:
        return float(load(chosen)(now))
    return _elsewhere(json.dumps({"chosen": chosen.model_dump(mode="json"), "now": asdict(now)}), chosen.label)


@lru_cache(maxsize=1024)
def _elsewhere(asked: str, label: str) -> float:
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid())]
    try:
        done = subprocess.run(
            command,
            input=asked,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env=child_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BadInputError(f"the schedule {label} took longer than {_LIMIT_S:.0f} s to return a number") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise BadInputError(f"the process of the schedule {label} ended with exit code {done.returncode}: {last}")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise BadInputError(answer["error"], hint=answer["hint"])
    return answer["value"]


def _main() -> None:
    die_with_parent(int(sys.argv[1]))
    asked = json.load(sys.stdin)
    chosen, now = ScheduleConfig.model_validate(asked["chosen"]), asked["now"]
    now["metrics"] = {name: tuple(values) for name, values in now["metrics"].items()}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer: dict[str, object] = {"value": float(load(chosen)(Progress(**now)))}
        except ScheduleError as error:
            answer = {"error": f"the schedule {chosen.label}: {error}", "hint": ""}
        except GradusError as error:
            answer = {"error": error.message, "hint": error.hint}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
