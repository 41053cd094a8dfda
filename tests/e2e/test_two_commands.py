"""Two commands that need the same artifact: the second waits, says for whom, and takes what the first one made."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Program = Any

SLOW = """
import time
from pathlib import Path

def slow(rows):
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.1)
    return [1.0] * len(rows)
"""


def command(program: Program, folder: Path, *extra: str) -> "subprocess.Popen[str]":
    score = ["score", "--rollouts", str(folder / "mine.jsonl"), "--reward", f"{folder / 'reward.py'}:slow"]
    return subprocess.Popen(
        [sys.executable, "-m", "gradus", *score, "--set", "item_timeout_s=200", "--json", *extra],
        env=program.environment(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_second_waits_and_with_no_wait_fails(new_program: Callable[..., Program], tmp_path: Path) -> None:
    program = new_program()
    (tmp_path / "mine.jsonl").write_text('{"problem_id": "p", "completion": "2", "answer": "2"}\n')
    (tmp_path / "reward.py").write_text(SLOW)
    first = command(program, tmp_path)
    try:
        deadline = time.monotonic() + 600
        while not list(program.home.glob("lake/scores/*/.lock")):
            assert time.monotonic() < deadline
            assert first.poll() is None, first.communicate()
            time.sleep(0.1)
        second, third = command(program, tmp_path), command(program, tmp_path, "--no-wait")
        _, refused = third.communicate(timeout=600)
        assert third.returncode == 1
        run = next(folder.name for folder in (program.home / "runs").iterdir() if folder.name.endswith(f"-{first.pid}"))
        assert f"run {run} (process" in refused
        assert "is computing scores/" in refused
        os.set_blocking(second.stderr.fileno(), False)  # type: ignore[union-attr]
        said = ""
        while "waiting for" not in said:
            assert time.monotonic() < deadline + 200
            said += second.stderr.read() or ""  # type: ignore[union-attr]
            time.sleep(0.1)
        assert f"waiting for run {run} (process" in said
        (tmp_path / "go").touch()
        made, taken = (json.loads(process.communicate(timeout=600)[0]) for process in (first, second))
        assert made["artifact"] == taken["artifact"]
        assert (made["reused"], taken["reused"]) == (False, True)
    finally:
        (tmp_path / "go").touch()
        for process in (first, *([second] if "second" in locals() else [])):
            process.kill()
            process.communicate()
