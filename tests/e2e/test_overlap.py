"""A run that overlaps, through the real program: what is learnt from, what a kill on either side costs."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradus.data.lake.manifest import REPORT
from tests.e2e.conftest import Program
from tests.patience import until

ROUNDS = 3
COMMAND = ("train", str(Path(__file__).parent / "tiny.toml"), "--rounds", str(ROUNDS), "--overlap", "1")
Run = tuple[Program, dict[str, Any]]


@pytest.fixture(scope="module")
def overlapped(new_program: Callable[..., Program]) -> Run:
    program = new_program(warm=True)
    return program, program.json(*COMMAND)


def begun(program: Program, stage: str, index: int, run: str = "tiny-*") -> list[dict[str, Any]]:
    started = [event for event in program.events(run) if event["event"] == "stage_started"]
    named = [event for event in started if (event["stage"], event["round"]) == (stage, index)]
    return [event for event in named if event["purpose"] not in ("eval", "profile")]


def workers(program: Program) -> list[psutil.Process]:
    """Every living worker of this program's home, whoever its parent is by now."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = "gradus.tasks.runtime.worker" in process.cmdline() and process.environ().get("GRADUS_HOME") == str(
                program.home
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if mine and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_every_update_but_the_first_learns_from_rows_one_update_old(overlapped: Run) -> None:
    program, result = overlapped
    assert result["updates"] == ROUNDS
    begins = (begun(program, "update", index)[0] for index in range(1, ROUNDS + 1))
    reports = [json.loads((program.home / "lake" / each["output"] / REPORT).read_bytes()) for each in begins]
    ages = {
        index: (each["metrics"]["data/age_mean"], each["metrics"]["data/age_max"])
        for index, each in enumerate(reports, start=1)
    }
    assert ages == {1: (0.0, 0.0), 2: (1.0, 1.0), 3: (1.0, 1.0)}
    for index in range(1, ROUNDS + 1):
        (update,) = begun(program, "update", index)
        assert (update["config"]["max_age"], update["config"]["correction"]["name"]) == (1, "token_truncated")
        (before,) = begun(program, "update", max(1, index - 1))
        assert {tuple(r["inputs"]["policy"]) for r in begun(program, "rollout", index)} == {
            tuple(before["inputs"]["policy"])
        }


def test_the_next_round_is_generated_while_the_update_computes_and_prefect_shows_both(overlapped: Run) -> None:
    program, result = overlapped
    told = [
        (e["event"], e["attempt"])
        for e in program.events("tiny-*")
        if e["event"].startswith("stage_") and "attempt" in e
    ]
    for index in range(1, ROUNDS):
        (update,), (following, *_) = begun(program, "update", index), begun(program, "rollout", index + 1)
        assert told.index(("stage_started", following["attempt"])) < told.index(("stage_finished", update["attempt"]))
    flow_run = program.launches(result["run"])[0]
    shown = program.prefect("select name, state_type from task_run where flow_run_id = ?", flow_run)
    wanted = {f"{stage}-{index}" for stage in ("rollout", "update") for index in range(1, ROUNDS + 1)}
    assert wanted <= {name for name, _ in shown}
    assert {state for _, state in shown} == {"COMPLETED"}


def test_what_comes_before_the_first_update_is_that_of_a_run_without_overlap(overlapped: Run, undisturbed: Run) -> None:
    program, _ = overlapped
    calm, result = undisturbed
    update = begun(calm, "update", 1, result["run"])[0]["attempt"]
    before = [e for e in calm.events(result["run"]) if e["event"] == "stage_started"]
    before = before[: [e["attempt"] for e in before].index(update)]
    assert len(before) > 10
    mine, theirs = program.manifests(), calm.manifests()
    assert {e["output"]: mine.get(e["output"]) for e in before} == {e["output"]: theirs[e["output"]] for e in before}


def test_killed_as_a_whole_in_the_update_and_in_the_generation_it_comes_to_the_same_policy(
    overlapped: Run, new_program: Callable[..., Program]
) -> None:
    calm, result = overlapped
    program = new_program(warm=True)
    process = program.start(*COMMAND, "--json")
    program.wait_for("problems/*/_manifest.json")
    until(lambda: begun(program, "rollout", 2) and begun(program, "update", 1), 600, 0.02)
    assert len(workers(program)) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers(program), timeout=15)
    assert not alive
    for fault, worker in (("update:after_step#1", "policy"), ("rollout:after_shard#1", "sampler")):
        code, _, err = program.run(*COMMAND, "--json", GRADUS_FAULT=fault)
        assert code == 1
        assert f"the {worker} worker was killed by SIGKILL" in err
        assert "did not end well" not in err
        assert not workers(program)
        ended = [e for e in program.events("tiny-*") if e["event"] == "stage_finished"]
        assert [e["status"] for e in ended].count("failed") == 1 + (worker == "sampler")
    again = program.json(*COMMAND)
    assert again["policy"] == result["policy"]
    # A train state that was computed again on the way is one that the calm run had in memory alone.
    wanted, found = (
        calm.manifests(),
        {n: m for n, m in program.manifests().items() if not n.startswith("train_states/")},
    )
    assert {name: wanted[name] for name in found} == found
