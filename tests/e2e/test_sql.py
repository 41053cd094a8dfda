"""`gradus sql` as a program among others: a pipe that is closed early ends it without a word."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Program = Any
ROWS = "select repeat('x', 1000) as text from range(100000)"


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_closed_pipe_ends_it_quietly_before_all_is_written(
    new_program: Callable[..., Program], options: list[str]
) -> None:
    program = new_program()
    with (
        (program.home / "errors.txt").open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-m", "flows.cli", "sql", ROWS, *options],
            env=program.environment(),
            cwd=program.home,
            stdout=subprocess.PIPE,
            stderr=err,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(100)
        process.stdout.close()
        assert process.wait(timeout=300) == 141  # as the shell counts an end by SIGPIPE
    assert (program.home / "errors.txt").read_text() == ""
