"""What a command costs beside its stage: nothing is begun for a wrong one, and a server that is there is used."""

import os
import re
import signal
from collections.abc import Callable

import psutil
import pytest

from gradus.tasks.host.home_folder import SECRETIVE
from tests.e2e.conftest import Program
from tests.patience import until
from tests.servers import servers

REFERENCE = "problems/" + "0" * 32
WRONG = [
    (["hint", "--problems", REFERENCE], f"there is no artifact {REFERENCE}"),
    (["score", "--rollouts", "train.jsonl", "--reward", "nonesuch"], "there is no reward 'nonesuch'"),
    (["train", "demo", "--set", "problems=nowhere.jsonl"], "nowhere.jsonl is neither a file nor an artifact"),
    (["rerun", "nonesuch", "score"], "there is no run nonesuch"),
]
"""One of each kind; tests/flows/test_refusals.py has the others."""


@pytest.mark.parametrize(
    ("arguments", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_a_wrong_command_begins_nothing(
    new_program: Callable[..., Program], arguments: list[str], message: str
) -> None:
    program = new_program(alone=True)
    before = set(program.home.iterdir())
    code, _, err = program.run(*arguments, PYTHONPROFILEIMPORTTIME="1")
    said = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert code == 2
    assert message in said[-1]
    imported = {line.rpartition("|")[2].strip() for line in err.splitlines() if line.startswith("import time:")}
    assert "typer" in imported
    assert not imported & {"prefect", "torch", "transformers", "datasets"}
    made = {path.name for path in set(program.home.iterdir()) - before}
    assert made <= {"stdout", "stderr", "made-here", "made-here.json", *SECRETIVE}
    assert not [path for name in ("logs", "servers") for path in (program.home / name).rglob("*")]


def test_the_server_of_a_command_serves_the_next_and_leaves_by_itself(new_program: Callable[..., Program]) -> None:
    program = new_program(alone=True, reports=True)
    command = ("ingest", "train.jsonl", "--set", "limit=3", "--json")
    code, _, err = program.run(*command, GRADUS_SERVER_IDLE_S="10")
    assert code == 0
    assert re.fullmatch(r"ingest    3 rows \(\d+\.\d s\)\n", err)
    (server,) = servers(program.home)
    assert psutil.Process(server).terminal() is None
    assert {c.laddr.ip for c in psutil.Process(server).net_connections() if c.status == "LISTEN"} == {"127.0.0.1"}
    process = program.start(*command, GRADUS_SERVER_IDLE_S="10")
    until(lambda: process.poll() is not None or len(program.started()) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert servers(program.home) == [server]
    first, killed = program.started()
    until(lambda: not servers(program.home))
    code, _, err = program.run(*command)
    assert code == 0
    assert re.fullmatch(r"ingest    3 rows \(.*\)\n", err)
    assert program.prefect_state(first) == "COMPLETED"
    assert program.prefect_state(killed) == "CRASHED"
    until(lambda: not servers(program.home))
