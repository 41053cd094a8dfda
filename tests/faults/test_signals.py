"""Ctrl-C and SIGTERM in a command's first seconds: one sentence and the signal's exit code."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus.tasks.host.interrupt import SENTENCES

ROOT = Path(__file__).parents[2]
MOMENTS = (
    (0.0, signal.SIGINT),
    (0.0, signal.SIGTERM),
    (0.4, signal.SIGINT),
    (0.8, signal.SIGTERM),
    (1.6, signal.SIGINT),
    (3.0, signal.SIGTERM),
)
"""When each command gets its signal: seconds after it has begun to listen for it."""


def command(folder: Path, *words: str, **env: str) -> "subprocess.Popen[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GRADUS_", "PREFECT_"))}
    ours = {"GRADUS_HOME": str(folder / "home"), "GRADUS_SERVER_IDLE_S": "0", "GRADUS_REPORT": "later"}
    ours |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "gradus", *words],
        cwd=folder,
        env={**kept, **ours, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(holds: Callable[[], object], process: "subprocess.Popen[str]", limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def listens(process: "subprocess.Popen[str]") -> bool:
    """Whether a process catches SIGTERM, which Python by itself does not."""
    (mask,) = [
        line.split()[1]
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("SigCgt")
    ]
    return bool(int(mask, 16) & 1 << signal.SIGTERM - 1)


def said(process: "subprocess.Popen[str]") -> tuple[int, list[str]]:
    """The exit code and the lines of a command that was sent a signal; it must not run on."""
    _, err = process.communicate(timeout=120)
    return process.returncode, err.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_signal_in_the_first_seconds_ends_a_command_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a Prefect server that takes long to answer
        api = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        running = [command(tmp_path, "ingest", "train.jsonl", PREFECT_API_URL=api) for _ in MOMENTS]
        begun: list[float] = []
        for process in running:
            until(lambda process=process: listens(process), process)
            begun.append(time.monotonic())
        for (after_s, number), process, since in sorted(
            zip(MOMENTS, running, begun, strict=True), key=lambda m: m[0][0]
        ):
            time.sleep(max(0.0, since + after_s - time.monotonic()))
            process.send_signal(number)
        ends = [said(process) for process in running]
    assert ends == [(128 + number, [SENTENCES[number]]) for _, number in MOMENTS]
