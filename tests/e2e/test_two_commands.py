"""Two commands that need the same artifact: the second waits, says for whom, and takes what the first one made."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Program
from tests.patience import until

SLOW = """
import time
from pathlib import Path

def slow(rows):
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.1)
    return [1.0] * len(rows)
"""


def command(program: Program, folder: Path, *extra: str, errors: Path) -> "subprocess.Popen[str]":
    """Start the verb; its errors go to a file, which can be read while it runs."""
    score = ["score", "--rollouts", str(folder / "mine.jsonl"), "--reward", f"{folder / 'reward.py'}:slow"]
    with errors.open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "gradus", *score, "--set", "item_timeout_s=200", "--json", *extra],
            env=program.environment(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )


def test_the_second_waits_and_with_no_wait_fails(new_program: Callable[..., Program], tmp_path: Path) -> None:
    program = new_program()
    (tmp_path / "mine.jsonl").write_text('{"problem_id": "p", "completion": "2", "answer": "2"}\n')
    (tmp_path / "reward.py").write_text(SLOW)
    errors = [tmp_path / f"stderr-{index}" for index in range(3)]
    processes = [command(program, tmp_path, errors=errors[0])]
    (first,) = processes
    try:
        until(lambda: first.poll() is not None or list(program.home.glob("lake/scores/*/.lock")), 600)
        assert first.poll() is None, errors[0].read_text()
        processes += [
            command(program, tmp_path, errors=errors[1]),
            command(program, tmp_path, "--no-wait", errors=errors[2]),
        ]
        _, second, third = processes
        assert third.wait(timeout=600) == 1
        run = next(folder.name for folder in (program.home / "runs").iterdir() if folder.name.endswith(f"-{first.pid}"))
        assert f"run {run} (process" in errors[2].read_text()
        assert "computes scores/" in errors[2].read_text()
        until(lambda: second.poll() is not None or "waiting for" in errors[1].read_text(), 600)
        assert f"waiting for run {run} (process" in errors[1].read_text()
        (tmp_path / "go").touch()
        made, taken = (json.loads(process.communicate(timeout=600)[0]) for process in (first, second))
        assert made["artifact"] == taken["artifact"]
        assert (made["reused"], taken["reused"]) == (False, True)
    finally:
        (tmp_path / "go").touch()
        for process in processes:
            process.kill()
            process.communicate()
