"""`gradus sql` as a program among others: a pipe that is closed early ends it without a word."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.e2e.conftest import Program

ROWS = "select repeat('x', 1000) as text from range(100000)"
ENDLESS = "select count(*) as n from range(1000000000) a(i), range(1000000) b(j) where (i * j) % 7 = 1"


@pytest.mark.parametrize("query", [[ROWS, "--json"], [ROWS], [ENDLESS]], ids=["json", "table", "computing"])
def test_a_closed_pipe_ends_it_quietly_before_all_is_written(
    new_program: Callable[..., Program], query: list[str]
) -> None:
    program = new_program(warm=True)
    with (
        (program.home / "errors.txt").open("wb") as err,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "gradus", "sql", *query],
            env=program.environment(),
            cwd=program.home,
            stdout=subprocess.PIPE,
            stderr=err,
        ) as process,
    ):
        assert process.stdout is not None
        if query != [ENDLESS]:  # which writes nothing until it ends
            assert process.stdout.read(100)
        process.stdout.close()
        assert process.wait(timeout=300) == 141  # as the shell counts an end by SIGPIPE
    assert (program.home / "errors.txt").read_text() == ""
