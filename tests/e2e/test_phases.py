"""Two phases, profiles and numbers that follow schedules, through the real program, killed in between.

The first phase ends when pass@1 of a suite does not rise, which it cannot with two tokens to answer in.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import RECIPE, Program

SETS = {
    "rounds": "3",
    "escalate": "[]",
    "update.lr": '{schedule="linear", start=1e-4, end=5e-5, rounds=3}',
    "curate.draw": "8",
    "profile.max_tokens": "8",
    "evaluate.sample.max_tokens": "2",
    "evaluate.every": "1",
    "phase": '[{rounds=2, until={metric="eval/heldout/pass_at_1", without="rise"}}, {problems="other.jsonl", '
    'changes={"curate.sample.temperature"={schedule="mine.py:cooler"}, "curate.sample.n"=2}}]',
}
USERS = '''
from gradus.components import component


@component("schedule")
def cooler(now, *, start: float = 1.0):
    """Return a tenth less from round to round of the phase."""
    return start - 0.1 * (now.round - 1)
'''


def settings(program: Program, run: str, stage: str, purpose: str = "train") -> dict[int, Any]:
    """The settings of a stage by round, from the manifests of what its calls made."""
    made = {
        e["round"]: e["output"]
        for e in program.events(run)
        if e["event"] in ("stage_started", "stage_reused") and (e["stage"], e["purpose"]) == (stage, purpose)
    }
    return {
        index: json.loads((program.home / "lake" / output / "_manifest.json").read_text())["identity"]["config"]
        for index, output in made.items()
    }


def command(program: Program, *more: str) -> tuple[str, ...]:
    (program.home / "mine.py").write_text(USERS)
    lines = (program.home / "train.jsonl").read_text().splitlines(keepends=True)
    (program.home / "other.jsonl").write_text("".join(lines[::2]))
    return ("train", str(RECIPE), *(word for key, value in SETS.items() for word in ("--set", f"{key}={value}")), *more)


@pytest.fixture(scope="module")
def killed(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    """The run killed while it profiles the problems of its second phase, and run to its end."""
    program = new_program(warm=True)
    words = command(program, "--run", "phased")
    code, _, _ = program.run(*words, GRADUS_FAULT="rollout:after_shard#6")
    assert code != 0
    last = [e for e in program.events("phased") if e["event"] == "stage_started"][-1]
    assert (last["stage"], last["round"], last["purpose"]) == ("rollout", 2, "profile")
    return program, program.json(*words)


def test_a_run_killed_in_its_second_phase_ends_in_the_bytes_of_an_undisturbed_one(
    new_program: Callable[..., Program], killed: tuple[Program, dict[str, Any]]
) -> None:
    undisturbed, (program, told) = new_program(warm=True), killed
    there = undisturbed.json(*command(undisturbed, "--run", "phased"))
    assert told["policy"] == there["policy"]
    made, there_too = ({n for n in each.manifests() if "train_states" not in n} for each in (program, undisturbed))
    assert made == there_too  # beside the train states, of which the killed run keeps one more
    one, other = (each.home / "lake" / told["policy"] / "model.safetensors" for each in (program, undisturbed))
    assert one.read_bytes() == other.read_bytes()
    assert "phase 2 of 2 began with round 2" in told["remarks"]


def test_every_stage_was_computed_with_the_numbers_of_its_round(killed: tuple[Program, dict[str, Any]]) -> None:
    program, _ = killed
    assert {index: each["lr"] for index, each in settings(program, "phased", "update").items()} == pytest.approx(
        {1: 1e-4, 2: 7.5e-5, 3: 5e-5}
    )
    rows = [row for row in program.rows("rollouts/*") if row["round"] is not None and row.get("hint_level", 0) == 0]
    sampled = {index: {(r["temperature"]) for r in rows if r["round"] == index} for index in (2, 3)}
    assert sampled == {2: {1.0}, 3: {0.9}}
    ours = {json.loads(line)["question"] for line in (program.home / "other.jsonl").read_text().splitlines()}
    texts = {row["problem_id"]: row["question"] for row in program.rows("problems/*")}
    assert all(texts[row["problem_id"]] in ours for row in rows if row["round"] > 1)
    assert not all(texts[row["problem_id"]] in ours for row in rows if row["round"] == 1)


def test_the_second_phase_begins_with_what_its_own_profile_counts(killed: tuple[Program, dict[str, Any]]) -> None:
    program, _ = killed
    made = {(e["stage"], e["round"], e["purpose"]): e for e in program.events("phased") if "output" in e}
    rollouts, scores = (program.rows(made[stage, 2, "profile"]["output"]) for stage in ("rollout", "score"))
    right = {row["rollout_id"]: row["correct"] for row in scores}
    counts = {row["problem_id"]: row for row in program.rows(made["difficulty", 2, "profile"]["output"])}
    updated = made["update", 1, "train"]["output"].partition("/")[2]
    assert {row["policy"] for row in rollouts} == {updated}
    for row in rollouts:  # one of each problem
        found = counts[row["problem_id"]]
        assert (found["n"], found["k"], found["last_round"]) == (1, int(right[row["rollout_id"]]), 2)
        assert found["policies"][-1] == updated
    before = {row["problem_id"]: row for row in program.rows(made["difficulty", 1, "train"]["output"])}
    both = set(before) & {row["problem_id"] for row in rollouts}
    assert both
    assert all(counts[name]["history"][:-1] == before[name]["history"] for name in both)
    others = set(before) - both
    assert others
    assert all(counts[name] == before[name] for name in others)
    used = next(e for e in program.events("phased") if (e["event"], e.get("stage"), e.get("round"), e.get("purpose"))
                == ("stage_started", "curate", 2, "train"))  # fmt: skip
    assert used["inputs"]["difficulty"] == [made["difficulty", 2, "profile"]["output"]]


def test_a_stage_of_a_phase_is_asked_again_with_the_same_numbers_and_nothing_else_follows(
    killed: tuple[Program, dict[str, Any]],
) -> None:
    program, _ = killed
    before = program.manifests()
    program.json("rerun", "phased", "curate", "--round", "3")
    assert program.manifests().keys() == before.keys()
    again = [(e["stage"], e["round"]) for e in program.events("phased") if e["event"] == "stage_started"][-1]
    assert again == ("curate", 3)
