"""The looks of `gradus runs` and `gradus show`: within 80 columns, names whole, colour for people alone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import CorruptArtifactError
from gradus.flows.console.run_tables import render_run_story, render_runs
from gradus.flows.console.study_tables import render_bisected
from gradus.tasks.formats import size
from gradus.tasks.runs.history import of_run
from tests.conftest import TESTS_PATH, seen_on_a_terminal

DIGEST = "0123456789abcdef" * 2
ATTEMPT = {
    "stage": "update",
    "round": 18,
    "purpose": "eval-validation",
    "seconds": 1234.5,
    "bytes": 3_400_000,
    "pruned": "",
}


def story(status: str, error: str = "", **more: Any) -> dict[str, Any]:
    attempt = {**ATTEMPT, "status": status, "output": f"checkpoints/{DIGEST}", "error": ""}
    run = {"run": "demo-0a1b2c3d", "verb": "train", "status": status, "error": error, "started": 1.7e9, "gain": 0.192}
    counts = {"stages": 181, "reused": 12, "seconds": 183.2, "bytes": 206_000_000, "logs": "/home/demo/logs"}
    return {
        "resumed": [],
        **run,
        **counts,
        "bytes_by_table": {"checkpoints": 206_000_000},
        "attempts": [attempt],
        **more,
    }


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_show_fits_80_columns_and_no_name_is_cut_or_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    render_run_story(story("finished"))
    said = lines(capsys)
    assert said == [
        "demo-0a1b2c3d: finished",
        "stage   round  purpose          status    seconds  output",
        "update     18  eval-validation  finished   1234.5  checkpoints/0123456789",
        "206 MB of artifacts: checkpoints 206 MB",
    ]
    monkeypatch.setenv("COLUMNS", "120")
    render_run_story(story("finished"))
    assert lines(capsys)[2].split()[-1] == f"checkpoints/{DIGEST}"
    monkeypatch.setenv("COLUMNS", "20")
    render_run_story(story("finished"))
    assert "checkpoints/0123456789" in " ".join(lines(capsys)).split()


def test_show_says_what_was_pruned_in_a_narrow_terminal_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = story("finished")
    shown["attempts"][0]["pruned"] = "2026-11-23"
    render_run_story(shown)
    assert lines(capsys)[2].split()[:4] == ["update", "18", "eval-validation", "pruned"]


def test_show_says_why_a_run_and_an_attempt_did_not_finish(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = story("failed", "the reward raised")
    shown["attempts"].append({**shown["attempts"][0], "status": "killed", "error": "stopped by Ctrl-C"})
    render_run_story(shown)
    said = lines(capsys)
    assert said[0] == "demo-0a1b2c3d: failed: the reward raised"
    assert "update of round 18 (killed): stopped by Ctrl-C" in said
    assert "logs: /home/demo/logs" in said


def test_runs_have_date_gain_and_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = [story("finished"), story("failed", "no signal", run="x" * 90, gain=None, started=None)]
    render_runs({"runs": runs, "bytes": 206_000_000, "bytes_by_table": {"checkpoints": 206_000_000}})
    said = lines(capsys)
    assert said[1].split() == ["demo-0a1b2c3d", "finished", "2023-11-14", "+19.2", "206", "MB"]
    assert said[2].split() == ["x" * 90, "failed", "-", "-", "206", "MB"]
    assert said[-1] == "206 MB of artifacts: checkpoints 206 MB"
    assert " ".join(said[3:-1]).replace(" ", "") == f"{'x' * 90}:nosignal"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "-"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_950, "1.0 MB"),
        (99_600_000, "100 MB"),
        (7_200_000_000_000, "7200 GB"),
    ],
)
def test_bytes_are_shown_in_three_digits(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


PRINTED = """
from gradus.flows.console.run_tables import render_run_story
from tests.flows.console.test_run_tables import story
render_run_story(story("failed"))
"""


def printed(**environment: str) -> tuple[bytes, bytes]:
    """What a program prints to a terminal, and to a pipe."""
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": TESTS_PATH, **environment}
    seen = seen_on_a_terminal(PRINTED, env, "stdout")
    return seen, subprocess.run([sys.executable, "-c", PRINTED], env=env, stdout=subprocess.PIPE, check=True).stdout


def test_a_status_is_coloured_on_a_terminal_and_neither_in_a_pipe_nor_without_colour() -> None:
    terminal, pipe = printed()
    assert b"\x1b[31mfailed" in terminal
    assert b"\x1b" not in pipe
    assert b"failed" in pipe
    terminal, _ = printed(NO_COLOR="1")
    assert b"\x1b[31m" not in terminal
    assert b"failed" in terminal


def test_a_file_of_labels_with_a_space_in_its_name_can_be_opened_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    render_bisected({"run": "demo", "found": None, "labels": "/home/a user/labels.jsonl", "to_label": 2})
    assert "`gradus browse '/home/a user/labels.jsonl'` asks for them" in " ".join(capsys.readouterr().out.split())


def test_the_next_step_of_a_run_with_a_space_in_its_name_can_be_repeated_as_printed() -> None:
    damage = of_run(CorruptArtifactError("it is damaged"), Path("gone"), "my run", "train")
    assert damage.hint == "`gradus train 'my run'` computes it again"
