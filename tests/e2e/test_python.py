"""`import gradus` in a process of a user's: the page and the notebook as they stand, and what they leave behind."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from tests.e2e.conftest import ROOT, Program
from tests.patience import until

IDLE_S = "6"


class Told:
    """The folder of the process, what it said, and what it found."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.person = folder / "person"
        self.person.mkdir()
        command = [
            sys.executable,
            ROOT / "tests/e2e/from_python.py",
            ROOT / "docs/python.md",
            ROOT / "docs/python.ipynb",
        ]
        environment = program.environment(HOME=str(self.person), GRADUS_SERVER_IDLE_S=IDLE_S)
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=840, check=False
        )
        assert done.returncode == 0, done.stderr
        self.out, self.err = done.stdout, done.stderr
        self.found: dict[str, Any] = json.loads((folder / "found.json").read_text())

    def files(self, stage: str, purpose: str, index: int) -> list[str]:
        """The Parquet files of a stage of the run, by its journal."""
        (output, *_) = [
            event["output"]
            for event in self.program.events(self.found["run"])
            if event["event"] == "stage_started"
            and (event["stage"], event["purpose"], event["round"]) == (stage, purpose, index)
        ]
        return [str(path) for path in (self.program.home / "lake" / output).glob("part-*.parquet")]


@pytest.fixture(scope="module")
def told(new_program: Callable[..., Program], tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(new_program(alone=True), tmp_path_factory.mktemp("python"))


def test_the_page_and_the_notebook_run_as_they_stand(told: Told) -> None:
    found = told.found
    assert found["same"]
    assert sum(stage["ran"] for stage in found["stages"].values()) == 0
    assert "update.learning_rate -> did you mean update.lr?" in told.out
    lines = [line for line in told.err.splitlines() if line]
    assert lines, "the notebook asks for progress"
    assert [line for line in lines if not re.match(r"round +\d+  .*\(reused\)$|note: ", line)] == []


def test_its_figures_are_those_of_the_files_counted_another_way(told: Told) -> None:
    for row in told.found["evaluations"]:
        scores = told.files("score", "eval", row["round"])
        rate, num = duckdb.execute("select avg(correct::int), count(*) from read_parquet(?)", [scores]).fetchone() or (
            None,
            None,
        )
        assert (row["pass_at_1"], row["rollouts"]) == (pytest.approx(rate), num)
        assert row["low"] <= rate <= row["high"]
    assert [row["round"] for row in told.found["evaluations"]] == [0, 1]
    counted = {
        (index, purpose): duckdb.execute(
            "select count(*), avg(reward) from read_parquet(?)", [told.files("score", purpose, index)]
        ).fetchone()
        for index, purpose in ((0, "eval"), (0, "profile"), (1, "train"), (1, "eval"))
    }
    listed = {(row["round"], row["purpose"]): (row["rollouts"], row["reward"]) for row in told.found["rounds"]}
    assert listed == {key: pytest.approx(value) for key, value in counted.items()}
    by_purpose = {row["purpose"]: row["n"] for row in told.found["rewards"]}
    assert by_purpose["eval"] == sum(num for (_, purpose), (num, _) in listed.items() if purpose == "eval")


def test_an_interrupt_ends_the_workers_and_leaves_the_process_as_it_was(told: Told) -> None:
    ended = told.found["interrupted"]
    assert (ended["raised"], ended["workers"]) == ("KeyboardInterrupt", 0)
    assert ended["error"] == "stopped by Ctrl-C; run the same command again to resume"
    assert told.found["left_as_it_was"]


def test_the_program_finds_the_run_whole_and_nothing_is_left(told: Told) -> None:
    settings = {"rounds": 1, **told.found["settings"]}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    (told.program.home / "sums.jsonl").write_bytes((told.folder / "sums.jsonl").read_bytes())
    (told.program.home / "other-sums.jsonl").write_bytes((told.folder / "other-sums.jsonl").read_bytes())
    again = told.program.json("train", "demo", *sets)
    assert again["run"] == told.found["run"]
    assert sum(stage["ran"] for stage in again["stages"].values()) == 0
    assert again["best"] == told.found["best"]
    until(lambda: not processes(told.program.home), pause_s=0.1, wrong=lambda: str(processes(told.program.home)))
    assert list(told.person.iterdir()) == [], "such as ~/.prefect"


def test_a_loop_by_verbs_and_the_same_in_python_end_in_the_same_policy(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program, page = new_program(), (ROOT / "docs" / "own-loop.md").read_text()
    script, code = (
        re.findall(rf"^```{name}\n(.*?)^```", page, re.DOTALL | re.MULTILINE) for name in ("bash loop.sh", "python")
    )
    verb = tmp_path / "bin" / "gradus"
    verb.parent.mkdir()
    verb.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m gradus "$@"\n')
    verb.chmod(0o755)
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = program.environment()
    environment["PATH"] = f"{verb.parent}:{environment['PATH']}"
    said = []
    for command in (["bash", "-c", script[0]], [sys.executable, "-c", code[0]]):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    (policy,) = re.findall(r"^round 1: (checkpoints/\w+)$", said[0], re.MULTILINE)
    assert said[1].startswith(f"{policy} ")
    assert "'reused': True" in said[1]
    journals = list((program.home / "runs").glob("update-*/events.jsonl"))
    assert sum('"event": "stage_started"' in path.read_text() for path in journals) == 1


def processes(home: Path) -> list[list[str]]:
    """Every living process whose environment names the home."""
    found: list[list[str]] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GRADUS_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found
