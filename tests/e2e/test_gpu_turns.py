"""Runs take turns on the GPUs of a machine; here each run is told that it computes on one."""

import json
import time
from collections.abc import Callable
from typing import Any

Program = Any

LIMIT = "select \"limit\", active_slots from concurrency_limit_v2 where name = 'gradus-gpu'"


def ended_at(program: Program) -> float:
    """When the program's only run ended."""
    (journal,) = (program.home / "runs").glob("*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    return next(event["time"] for event in events if event["event"] == "run_finished")


def test_a_second_run_waits_until_the_first_has_ended_and_says_so(new_program: Callable[..., Program]) -> None:
    first, second = new_program(), new_program()
    command = ["warmstart", "--problems", "train.jsonl", "--set", "width=16", "--set", "layers=1", "--json", "--set"]
    started = first.start(*command, "steps=150", GRADUS_GPU_TURNS="on")
    until = time.monotonic() + 120
    while first.prefect(LIMIT) != [(1, 1)]:
        assert time.monotonic() < until, first.told()
        time.sleep(0.1)
    code, _, err = second.run(*command, "steps=1", GRADUS_GPU_TURNS="on")
    assert (code, started.wait(timeout=300)) == (0, 0), (err, first.told())
    assert "waits for a GPU, which other runs use (Prefect's limit gradus-gpu)" in err
    assert "waits for a GPU" not in first.told()
    (weights,) = (second.home / "lake" / "checkpoints").glob("*/model.safetensors")
    assert weights.stat().st_mtime > ended_at(first)
    assert first.prefect(LIMIT) == [(1, 0)]
