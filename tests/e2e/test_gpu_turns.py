"""Runs take turns on the GPUs of a machine; GRADUS_GPU_TURNS makes each count as one that computes there."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

Program = Any

LIMIT = "select \"limit\", active_slots from concurrency_limit_v2 where name = 'gradus-gpu'"


def until(found: Callable[[], Any], program: Program, limit_s: float = 240) -> None:
    deadline = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < deadline, program.told()
        time.sleep(0.1)


def test_a_second_run_waits_and_says_so_until_the_first_has_ended(new_program: Callable[..., Program]) -> None:
    first, second = new_program(), new_program()
    command = ["warmstart", "--problems", "train.jsonl", "--set", "width=16", "--set", "layers=1", "--json", "--set"]
    holds = first.start(*command, "steps=1000000", GRADUS_GPU_TURNS="on")
    until(lambda: first.prefect(LIMIT) == [(1, 1)], first)
    waits = second.start(*command, "steps=1", GRADUS_GPU_TURNS="on")
    sentence = "waits for a GPU, which other runs use (Prefect's limit gradus-gpu)"
    until(lambda: sentence in second.told(), second)
    assert waits.poll() is None
    assert "waits for a GPU" not in first.told()
    os.killpg(holds.pid, signal.SIGINT)
    assert holds.wait(timeout=300) == 130
    assert waits.wait(timeout=300) == 0, second.told()
    assert len(list((second.home / "lake" / "checkpoints").glob("*/model.safetensors"))) == 1
    assert first.prefect(LIMIT) == [(1, 0)]
