"""Trees of processes that are really killed, while they grow."""

import secrets
import subprocess
import sys

import psutil
import pytest

from gradus.models.processes.child import kill_tree
from tests.patience import until

GROWING = """
import subprocess, sys, threading, time
def grow():
    while True:
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(SECONDS)"], start_new_session=True)
        time.sleep(0.01)
threading.Thread(target=grow, daemon=True).start()
grow()
"""
LAYERED = """
import subprocess, sys, time
inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(SECONDS)"
middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", middle], start_new_session=True)
"""


@pytest.fixture
def mark() -> str:
    """How long the sleepers of one test sleep, which no other process does: by it they are found."""
    return f"60.{secrets.randbits(40)}"


def started(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)


def living(mark: str) -> list[int]:
    """The processes with this mark that have not ended; a killed one that nobody waits for has no command line."""
    return [p.pid for p in psutil.process_iter(["cmdline"]) if any(mark in word for word in p.info["cmdline"] or [])]


@pytest.mark.parametrize("program", [GROWING, LAYERED])
def test_nothing_of_a_tree_outlives_it(program, mark):
    for _ in range(4):
        with started(program.replace("SECONDS", mark)) as process:
            until(lambda: len(living(mark)) >= 3, 60, 0.01)
            kill_tree(process.pid)
            assert living(mark) == []


def test_a_process_that_is_gone_is_no_error():
    with started("pass") as process:
        process.wait()
        kill_tree(process.pid)
