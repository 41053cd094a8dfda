"""Best-of-4, votes and self-correction in evaluations, as in docs/recipes.md: killed within a wave, counted."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import RECIPE, ROOT, Program

PAGE = (ROOT / "docs" / "recipes.md").read_text().partition("`best_of_4.toml`:")[2]
SETTINGS = ("--method", "best_of_4.toml", "--rounds", "0", "--set", "rollout.shard_rows=8", "--run", "best")


def calls(program: Program, stage: str, *events: str) -> dict[str, dict[str, Any]]:
    """The calls of a stage by purpose."""
    return {e["purpose"]: e for e in program.events("best") if e["event"] in events and e["stage"] == stage}


def made(program: Program, stage: str, purpose: str) -> list[dict[str, Any]]:
    return program.rows(calls(program, stage, "stage_started", "stage_reused")[purpose]["output"])


@pytest.fixture(scope="module")
def evaluated(new_program: Callable[..., Program]) -> Program:
    """An evaluation of six problems, killed in the middle of the rollouts of a wave, and run to its end."""
    program = new_program(warm=True)
    (program.home / "best_of_4.toml").write_text(PAGE.partition("```toml\n")[2].partition("```")[0])
    for name, num in (("train", 4), ("heldout", 6)):
        file = program.home / f"{name}.jsonl"
        file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:num]))
    code, _, _ = program.run("train", str(RECIPE), *SETTINGS, GRADUS_FAULT="rollout:after_shard#4")
    assert code != 0
    last = [e for e in program.events("best") if e["event"] == "stage_started"][-1]
    assert (last["stage"], last["purpose"]) == ("rollout", "eval-again-rethink1")
    kept = {row["rollout_id"] for row in program.rows(last["output"])}
    program.json("train", str(RECIPE), *SETTINGS)
    rows = [row["rollout_id"] for row in program.rows(last["output"])]
    assert len({*rows}) == len(rows)
    assert {*kept} < {*rows}
    told = {e["attempt"]: e["summary"] for e in program.events("best") if e["event"] == "stage_finished"}
    again = [e for e in program.events("best") if e["event"] == "stage_started" and e["output"] == last["output"]][-1]
    generated = sum(len(row["completion_tokens"]) for row in program.rows(last["output"]))
    assert 0 < told[again["attempt"]]["tokens_generated"] < generated
    return program


def test_pass_at_1_is_that_of_the_rows_that_the_shapes_take(evaluated: Program) -> None:
    program = evaluated
    first, scores = made(program, "rollout", "eval"), made(program, "score", "eval")
    correct = {row["rollout_id"]: row["correct"] for row in scores}
    logp = {row["rollout_id"]: row["likelihood.logp"] for row in made(program, "measure", "eval-best-likelihood")}
    answer = {row["rollout_id"]: row["extracted"] for row in scores}
    by_problem: dict[str, list[str]] = {}
    for row in sorted(first, key=lambda row: row["sample"]):
        by_problem.setdefault(row["problem_id"], []).append(row["rollout_id"])
    assert {len(ids) for ids in by_problem.values()} == {4}
    best = {problem: max(ids, key=lambda name: logp[name]) for problem, ids in by_problem.items()}
    found = {row["problem_id"]: (row["n"], row["k"]) for row in made(program, "evaluate", "eval-best")}
    assert found == {problem: (1, int(correct[name])) for problem, name in best.items()}
    for row in made(program, "evaluate", "eval-vote"):
        said = Counter(answer[name] for name in by_problem[row["problem_id"]])
        most = next(name for name in by_problem[row["problem_id"]] if said[answer[name]] == max(said.values()))
        assert (row["n"], row["k"]) == (1, int(correct[most]))
    assert set(calls(program, "rollout", "stage_reused")) >= {"eval-best", "eval-vote", "eval-again"}


def test_each_answer_that_is_thought_over_takes_the_place_of_the_first(evaluated: Program) -> None:
    first, second = made(evaluated, "rollout", "eval"), made(evaluated, "rollout", "eval-again-rethink1")
    ended = {row["rollout_id"] for row in first if row["finish_reason"] == "stop"}
    assert {row["parent"] for row in second} == ended
    taken = [row for row in first if row["rollout_id"] not in ended] + second
    verdicts = [*made(evaluated, "score", "eval"), *made(evaluated, "score", "eval-again-rethink1")]
    correct = {row["rollout_id"]: row["correct"] for row in verdicts}
    right = Counter(row["problem_id"] for row in taken if correct[row["rollout_id"]])
    found = {row["problem_id"]: row["k"] for row in made(evaluated, "evaluate", "eval-again")}
    assert found == {problem: right[problem] for problem in found}
    batch = made(evaluated, "shape", "eval-again")
    assert Counter(row["taken"] for row in batch) == {True: len(taken), False: len(second)}


def test_an_interrupted_evaluation_has_the_artifacts_of_one_that_was_not(
    new_program: Callable[..., Program], evaluated: Program
) -> None:
    program = new_program(warm=True)
    for name in ("best_of_4.toml", "train.jsonl", "heldout.jsonl"):
        (program.home / name).write_text((evaluated.home / name).read_text())
    told = program.json("train", str(RECIPE), *SETTINGS)
    assert program.manifests().keys() == evaluated.manifests().keys()
    files = [
        {(name, file["name"]): file["sha256"] for name, text in manifests.items() for file in json.loads(text)["files"]}
        for manifests in (program.manifests(), evaluated.manifests())
    ]
    rows = [{key: digest for key, digest in each.items() if key[1].endswith(".parquet")} for each in files]
    assert rows[0] == rows[1]
    assert told["rounds"] == 0
