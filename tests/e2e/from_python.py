"""A process of a user's: the blocks of a page, a notebook's cells in a running event loop, and an interrupt.

    python from_python.py docs/python.md docs/python.ipynb     # in an empty folder; what it found goes to found.json

A notebook's kernel runs cells in its event loop, as here; outputs are not compared.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run(codes: list[str]) -> dict[str, Any]:
    """The names that pieces of code leave, run one after another as in one session."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(codes):
        exec(compile(code, f"block {number}", "exec"), names)
    return names


def surroundings() -> list[Any]:
    """What a call must leave as it was."""
    root = logging.getLogger()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return [dict(os.environ), root.handlers[:], root.level, logging.getLogRecordFactory(), sys.excepthook, *handlers]


def workers() -> list[int]:
    """The processes that compute for this one."""
    found: list[int] = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += [child.pid] if "gradus.tasks.runtime.worker" in child.cmdline() else []
    return found


def interrupted(gradus: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """What is left of a training that Ctrl-C ends as soon as a worker computes."""

    def press() -> None:
        while not workers():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    raised = ""
    try:
        gradus.train("demo", rounds=1, set=settings, run="interrupted")
    except BaseException as error:  # noqa: BLE001 - which one is what is asked
        raised = type(error).__name__
    summary = gradus.run("interrupted").summary()
    return {"raised": raised, "workers": len(workers()), "status": summary["status"], "error": summary["error"]}


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    page, notebook = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    before = surroundings()
    names = run(BLOCK.findall(page))
    cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]

    async def kernel() -> dict[str, Any]:
        return run(cells)

    noted = asyncio.run(kernel())
    gradus, trained = names["gradus"], names["run"]
    found = {
        "run": trained.name,
        "same": noted["run"].name == trained.name,
        "stages": noted["run"].result["stages"],
        "evaluations": trained.evaluations().to_pylist(),
        "rounds": trained.rounds().to_pylist(),
        "rewards": names["rewards"].to_pylist(),
        "best": trained.checkpoint("best"),
        "last": trained.artifact("update", round=1),
        "runs": gradus.runs()["run"].to_pylist(),
        "settings": noted["small"],
        "interrupted": interrupted(gradus, {**noted["small"], "seed": 5}),
    }
    found["left_as_it_was"] = surroundings() == before
    Path("found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
