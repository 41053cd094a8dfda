"""Cost of a command beside its stage, in units of `python -c "import prefect"`, measured in turns.

    python benchmarks/verbs.py                 # five turns
    python benchmarks/verbs.py --turns 3

Each turn runs once: the import, `gradus ingest` and `gradus hint` with a server that the command before left (warm),
`gradus ingest` that starts its own (cold), and one whose file does not exist. Before a turn is timed the processes that
report to MLflow have ended. Prints one table of medians: wall seconds, and ratios within a turn of wall time and of
CPU time, which follows the load of the machine less; that of a server is not a command's.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
from common import ROOT, environment

from gradus.tasks.tracking.sending import ensure_database

SAMPLES = ROOT / "data" / "samples"
IMPORT = [sys.executable, "-c", "import prefect"]
IDLE_S = 20
"""Longer than a reporter takes after its command, so that the server of the cold command serves the warm ones."""
GRADUS = [sys.executable, "-m", "gradus"]


class Cost(NamedTuple):
    """Wall and CPU seconds of a command."""

    wall_s: float
    cpu_s: float


def seconds(command: list[str], home: Path, idle_s: int = 0, code: int = 0) -> Cost:
    """Return the seconds of a command that must end with this exit code."""
    with tempfile.TemporaryFile() as words:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env=environment(home, GRADUS_SERVER_IDLE_S=str(idle_s)), cwd=home, stdout=words, stderr=words
        )
        _, status, used = os.wait4(process.pid, 0)
        elapsed = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            words.seek(0)
            sys.exit(f"{' '.join(command)} ended with {process.returncode}: {words.read().decode()[-500:]}")
    return Cost(elapsed, used.ru_utime + used.ru_stime)


def of_home(home: Path, *words: str) -> bool:
    """Return whether a process of this home runs whose command line has one of these words."""
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if any(word in line for word in words) and process.environ().get("GRADUS_HOME") == str(home):
                return process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
    return False


def settle(home: Path, *words: str) -> None:
    while of_home(home, *words):
        time.sleep(0.1)


def turn(home: Path, first: bool) -> dict[str, Cost]:
    """One measurement of each, none beside another."""
    reporter, server = "gradus.tasks.tracking.reporter", "gradus.tasks.servers.prefect_app:create"
    ingest = [*GRADUS, "ingest", str(home / "rows.jsonl"), "--json"]
    hint = [*GRADUS, "hint", "--problems", str(home / "rows.jsonl"), "--json"]
    plan: list[tuple[str, Callable[[], Cost]]] = [
        ('python -c "import prefect"', lambda: seconds(IMPORT, home)),
        ("a file that does not exist", lambda: seconds([*GRADUS, "ingest", "nowhere.jsonl"], home, code=2)),
        ("gradus ingest, alone and cold", lambda: seconds(ingest, home, idle_s=IDLE_S)),
        ("gradus ingest, a server running", lambda: seconds(ingest, home, idle_s=IDLE_S)),
        ("gradus hint, a server running", lambda: seconds(hint, home, idle_s=IDLE_S)),
    ]
    found: dict[str, Cost] = {}
    for name, measure in plan:
        settle(home, reporter)
        if "cold" in name:
            settle(home, server)
        found[name] = measure()
    settle(home, reporter)
    if first:
        return turn(home, first=False)  # the first fills caches of the file system and creates the database
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        ensure_database(home)
        row = {"question": "1 + 2 + 4 =", "answer": "7", "solution": "1 + 2 = 3\n3 + 4 = 7\n#### 7"}
        (home / "rows.jsonl").write_text(json.dumps(row) + "\n")
        found = [turn(home, first=index == 0) for index in range(turns)]
        settle(home, "gradus.tasks.tracking.reporter", "gradus.tasks.servers.prefect_app:create")
    base, *others = found[0]
    width = max(map(len, found[0]))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {turns} turns")
    print(f"{'':<{width}}  {'seconds':>8}  {'ratio':>6}  {'lowest':>6}  {'highest':>7}  {'ratio of CPU':>12}")
    print(f"{base:<{width}}  {statistics.median(t[base].wall_s for t in found):8.2f}  {1:6.2f}")
    for name in others:
        ratios = [t[name].wall_s / t[base].wall_s for t in found]
        middle = statistics.median(t[name].wall_s for t in found)
        cpu = statistics.median(t[name].cpu_s / t[base].cpu_s for t in found)
        spread = f"{statistics.median(ratios):6.2f}  {min(ratios):6.2f}  {max(ratios):7.2f}"
        print(f"{name:<{width}}  {middle:8.2f}  {spread}  {cpu:12.2f}")


if __name__ == "__main__":
    main()
