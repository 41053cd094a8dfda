"""Rounds without signal through the real program: skipped, said, reused, and no end of a run that has others."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Program

RECIPE = """
name = "quiet"
seed = 3
rounds = 3
problems = "train.jsonl"
escalate = []
evaluate = { problems = "heldout.jsonl", sample = { n = 1, max_tokens = 80 }, report = { ks = [1] } }
# Completions of rounds 1 and 3 are all alike.
overrides = [
    { stage = "curate", round = 1, changes = { "sample.temperature" = 0.001 } },
    { stage = "curate", round = 3, changes = { "sample.temperature" = 0.001 } },
]

[curate]
sampler = "uniform"
draw = 8
sample = { n = 4, max_tokens = 80 }

[score]
rewards = [{ name = "numeric" }]
"""
SHARED = "2 of the 24 problems of heldout are trained on, too: figures there are not of unseen ones"
WORDS = (
    "2 of the 54 training problems share 13 words in a row with a problem of heldout, or all their text: "
    'curate.filters = ["decontaminated"] leaves them out'
)
Run = tuple[Program, dict[str, Any]]


@pytest.fixture(scope="module")
def quiet(new_program: Callable[..., Program]) -> Run:
    """A training whose first attempt was killed as it ended its first update, the one that is skipped."""
    program = new_program(warm=True)
    (program.home / "quiet.toml").write_text(RECIPE)
    with (program.home / "train.jsonl").open("r+") as file:
        first = file.readline()
        file.seek(0, os.SEEK_END)
        file.write(first)  # the same question again
        heldout = (program.home / "heldout.jsonl").read_text().splitlines(keepends=True)
        file.writelines(line.lower().replace(" +", "  +") for line in heldout[:2])
    code, _, said = program.run("train", "quiet.toml", GRADUS_FAULT="update:before_manifest#1")
    assert code != 0
    assert said.count("training problems: 1 of 55 rows are left out") == 1  # by the command that read the file
    return program, program.json("train", "quiet.toml")


def updates(program: Program, run: str) -> list[dict[str, Any]]:
    return [event for event in program.events(run) if event["event"] == "stage_started" and event["stage"] == "update"]


def test_such_rounds_keep_the_policy_and_are_counted(quiet: Run) -> None:
    program, result = quiet
    assert (result["rounds"], result["updates"], result["skipped_updates"]) == (3, 1, 2)
    doubled, warm_up, skipped = (text for text in result["remarks"] if text not in (SHARED, WORDS))
    for shared in (SHARED, WORDS):
        assert shared in result["remarks"]
        assert program.told().count(f"note: {shared}") == 1
    assert skipped == "2 of 3 rounds had no signal and skipped their update: 1, 3"
    assert warm_up.endswith("optimiser step 15 (update.warmup_steps), and it takes about 1")
    assert doubled.startswith("training problems: 1 of 55 rows are left out (duplicate question: 1; first train.jsonl")
    assert "update    skipped: all 8 groups have rewards without variance" in program.told()
    policies = [event["inputs"]["policy"][0] for event in updates(program, result["run"])][-3:]
    assert policies[0] == policies[1] != policies[2] == result["policy"] == result["best"]


def test_what_reads_a_run_has_a_round_without_a_checkpoint(quiet: Run) -> None:
    program, result = quiet
    run, out = result["run"], program.home / "report.html"
    foreseen = program.json("train", run, "--rounds", "4", "--dry-run")
    assert foreseen["stages"]["update"] == {**foreseen["stages"]["update"], "reused": 3, "computed": 1}
    assert program.run("report", run, "--out", str(out))[0] == 0
    assert "2 of 3 rounds had no signal and skipped their update: 1, 3." in out.read_text()
    assert SHARED in out.read_text()
    rows = program.json(
        "sql", "select round, output, status from stages where stage = 'update' order by round", "--run", run
    )
    assert [at for at, _, status in rows["rows"] if status == "finished"] == [1, 2, 3]
    skipped = rows["rows"][-1][1]
    _, _, said = program.run("export", skipped, "--to", "nothing")
    assert "an update that was skipped" in said
