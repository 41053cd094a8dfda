"""Runs take turns on the GPUs of a machine; GRADUS_GPU_TURNS makes each count as one that computes there."""

import base64
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable

import psutil

from gradus.tasks.servers.secret import secret
from tests.e2e.conftest import Program
from tests.patience import patient_client, until
from tests.servers import served

WARMSTART = ["warmstart", "--problems", "train.jsonl", "--set", "width=16", "--set", "layers=1", "--json", "--set"]
SENTENCE = "waits for a GPU, which other runs use (Prefect's limit gradus-gpu)"
LIMIT = "select \"limit\", active_slots from concurrency_limit_v2 where name = 'gradus-gpu'"


def suspend(holds: "subprocess.Popen[bytes]", program: Program) -> None:
    """Stop the worker of a run that has its turn, so that it costs nothing while another waits."""

    def worker() -> list[psutil.Process]:
        children = psutil.Process(holds.pid).children(recursive=True)
        return [child for child in children if "gradus.tasks.runtime.worker" in child.cmdline()]

    until(worker, wrong=program.told)
    for process in worker():
        process.suspend()


def test_a_second_run_waits_and_says_so_until_the_first_has_ended(new_program: Callable[..., Program]) -> None:
    first, second = new_program(), new_program()
    holds = first.start(*WARMSTART, "steps=1000000", GRADUS_GPU_TURNS="on")
    until(lambda: first.prefect(LIMIT) == [(1, 1)], wrong=first.told)
    suspend(holds, first)
    waits = second.start(*WARMSTART, "steps=1", GRADUS_GPU_TURNS="on")
    until(lambda: SENTENCE in second.told(), wrong=second.told)
    assert waits.poll() is None
    assert "waits for a GPU" not in first.told()
    os.killpg(holds.pid, signal.SIGINT)
    assert holds.wait(timeout=300) == 130
    assert waits.wait(timeout=300) == 0, second.told()
    assert len(list((second.home / "lake" / "checkpoints").glob("*/model.safetensors"))) == 1
    assert first.prefect(LIMIT) == [(1, 0)]


def test_a_server_that_is_killed_and_starts_again_neither_ends_a_run_nor_loses_or_doubles_its_turn(
    new_program: Callable[..., Program],
) -> None:
    first, second = new_program(alone=True, apart=True), new_program(alone=True)
    holds = first.start(*WARMSTART, "steps=1000000", GRADUS_GPU_TURNS="on", GRADUS_SERVER_IDLE_S="30")
    until(lambda: slots(first) == [(1, 1)], wrong=first.told)
    suspend(holds, first)
    (server,) = served(first.home)
    key = secret(first.home)
    second.settings = {"PREFECT_API_URL": f"{server.address}/api", "PREFECT_API_AUTH_STRING": key}
    waits = second.start(*WARMSTART, "steps=1", GRADUS_GPU_TURNS="on")
    until(lambda: SENTENCE in second.told(), wrong=second.told)
    os.kill(server.server, signal.SIGKILL)
    until(lambda: (now := served(first.home)) and now[0].server not in (0, server.server), wrong=first.told)
    (lease,) = [path.stem for path in (first.home / "prefect" / "concurrency_leases").glob("*-*.json")]
    login = {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"}
    with patient_client(base_url=f"{server.address}/api", headers=login) as api:
        until(lambda: api.get("/health").is_success, wrong=first.told)
        renewed = api.post(f"/v2/concurrency_limits/leases/{lease}/renew", json={"lease_duration": 300})
        assert renewed.is_success, renewed.text
    time.sleep(15)  # the second asks again every few seconds
    assert (holds.poll(), waits.poll()) == (None, None), first.told() + second.told()
    assert slots(first) == [(1, 1)]
    os.killpg(holds.pid, signal.SIGINT)
    assert holds.wait(timeout=300) == 130
    assert waits.wait(timeout=300) == 0, second.told()
    assert slots(first) == [(1, 0)]


def slots(program: Program) -> list[tuple[int, int]]:
    """Slots of the limit and how many are taken; nothing while the database is being made."""
    try:
        return program.prefect(LIMIT)
    except sqlite3.OperationalError:
        return []
