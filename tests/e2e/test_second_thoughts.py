"""A changed mind, through the real program: more rounds, a setting changed from a round on, a look ahead, and why."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

Program = Any
RECIPE = Path(__file__).parent / "tiny.toml"
POLICY = Path(__file__).parents[2] / "data" / "samples" / "policy" / "model.safetensors"
Run = tuple[Program, dict[str, Any]]


def everything(home: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file of a home but those that the test writes itself."""
    files = (path for path in home.rglob("*") if path.is_file() and path.name not in ("stdout", "stderr"))
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def computed(calls: list[dict[str, Any]], word: str) -> set[tuple[str, int, str]]:
    return {(c["stage"], c["round"], c["purpose"]) for c in calls if word in (c.get("what"), c.get("status"))}


def attempts(program: Any, run: str, start: int) -> list[dict[str, Any]]:
    """What one command did for a run."""
    return [a for a in program.json("show", run)["attempts"] if a["start"] == start]


@pytest.fixture(scope="module")
def trained(new_program: Callable[..., Program]) -> Run:
    """One round of the tiny recipe, then a look ahead at the second, then the second."""
    program = new_program()
    first = program.json("train", str(RECIPE))
    before = everything(program.home)
    ahead = program.json("train", str(RECIPE), "--rounds", "2", "--dry-run")
    assert everything(program.home) == before  # nothing was started, nothing written
    assert ahead["goes_on"] is True
    second = program.json("train", str(RECIPE), "--rounds", "2")
    assert ahead["run"] == first["run"] == second["run"]
    return program, {"first": first, "ahead": ahead, "second": second}


def test_more_rounds_go_on_from_the_last_one(trained: Run) -> None:
    program, results = trained
    run = results["second"]["run"]
    assert (results["first"]["rounds"], results["second"]["rounds"]) == (1, 2)
    again = attempts(program, run, 2)
    assert {a["round"] for a in again if a["status"] == "finished"} == {2}
    reused = [a["output"] for a in again if (a["stage"], a["round"]) == ("update", 1)]
    assert reused == [a["output"] for a in attempts(program, run, 1) if a["stage"] == "update"]
    # What was there is found by its name and limit; a shorter command takes what there is.
    assert program.json("train", run, "--rounds", "1")["policy"] == results["first"]["policy"]


def test_what_was_foreseen_is_what_was_done(trained: Run) -> None:
    program, results = trained
    ahead, done = results["ahead"], attempts(program, results["second"]["run"], 2)
    foreseen = computed(ahead["calls"], "computed")
    assert foreseen - {("rollout", 2, "hint2"), ("score", 2, "hint2")} <= computed(done, "finished") <= foreseen
    whys = {(c["stage"], c["round"], c["purpose"]): c["why"] for c in ahead["calls"]}
    assert whys["curate", 2, "train"] == "nothing like it was computed before"
    assert whys["score", 2, "train"] == "its rollouts is computed anew (rollout-2)"
    rollouts = {c["purpose"]: c["rollouts"] for c in ahead["calls"] if c["stage"] == "rollout" and c["round"] == 2}
    assert (rollouts["train"], rollouts["eval"]) == (64, 48)  # 16 problems of 4; 48 problems of 1
    assert ahead["tokens"] > 0
    assert ahead["seconds"] > 0
    weights = load_file(POLICY)
    assert ahead["memory"]["update"] == 16 * sum(tensor.size for tensor in weights.values())


def test_a_setting_changed_from_a_round_on_shares_what_came_before(trained: Run) -> None:
    program, results = trained
    run = results["second"]["run"]
    command = ("rerun", run, "update", "--from-round", "2", "--set", "lr=3e-5")
    ahead = program.json(*command, "--dry-run")
    whys = {c["why"] for c in ahead["calls"] if (c["stage"], c["what"]) == ("update", "computed")}
    assert whys == {f"lr = 3e-05, before 5e-05 (run {run})"}
    other = program.json(*command)
    assert other["run"] == ahead["run"] != run
    done = attempts(program, other["run"], 1)
    assert computed(done, "finished") == computed(ahead["calls"], "computed")
    assert ("update", 1, "train") in computed(done, "reused")
    code, out, err = program.run("why", other["run"], "evaluate")
    assert (code, err) == (0, "")
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert lines["eval-evaluate-0"] == f"reused: the same settings, inputs and code as in run {run}"
    assert lines["eval-evaluate-2"] == f"finished: in update lr = 3e-05, before 5e-05 (run {run})"


def test_rollouts_of_a_run_are_scored_again_without_naming_their_problems(trained: Run) -> None:
    program, results = trained
    done = attempts(program, results["second"]["run"], 2)
    refs = {a["stage"]: a["output"] for a in done if a["round"] == 2 and a["purpose"] == "train"}
    again = program.json("score", "--rollouts", refs["rollout"], "--reward", "numeric")
    assert (again["artifact"], again["reused"]) == (refs["score"], True)


def test_a_guard_goes_back_to_the_best_policy_and_on_with_other_settings(trained: Run) -> None:
    program, results = trained
    run = results["second"]["run"]
    guard = '{metric="policy/entropy", max=0.0, from_round=2, then="back", changes={"update.lr"=1e-5}, times=2}'
    rescued = program.json("train", str(RECIPE), "--rounds", "3", "--set", f"guards=[{guard}]")
    assert rescued["run"] == run
    assert [remark.partition(":")[0] for remark in rescued["remarks"]] == ["round 2", "round 3"]
    assert rescued["remarks"][0].endswith("went back to the policy of round 1, and on with update.lr = 1e-05")
    events = [json.loads(text) for text in (program.home / "runs" / run / "events.jsonl").read_text().splitlines()]
    (third,) = [e for e in events if e["event"] == "stage_started" and (e["stage"], e["round"]) == ("update", 3)]
    assert third["inputs"]["policy"] == [results["first"]["policy"]]
    assert third["config"]["lr"] == 1e-5


def test_a_name_that_other_settings_have_is_refused_before_it_is_looked_at(trained: Run) -> None:
    program, results = trained
    taken = ("--run", results["second"]["run"], "--set", "update.lr=1e-3", "--dry-run")
    code, out, err = program.run("train", str(RECIPE), *taken)
    assert (code, out) == (2, "")
    assert err.startswith(f"gradus: run {results['second']['run']} exists with other settings (")


def test_a_guard_ends_the_run_with_a_sentence_and_another_guard_goes_on(trained: Run) -> None:
    program, results = trained
    run = results["second"]["run"]
    guard = 'guards=[{metric="policy/entropy", max=0.0, from_round=2}]'
    code, out, err = program.run("train", str(RECIPE), "--rounds", "2", "--set", guard)
    assert (code, out) == (1, "")
    begin, _, rest = err.partition(" is above the guard's max = 0; ")
    value = float(begin.rpartition("policy/entropy = ")[2])
    steps = [json.loads(line) for line in (program.home / "runs" / run / "metrics.jsonl").read_text().splitlines()]
    of_round = [s["metrics"] for s in steps if (s["stage"], s["round"], s["step"]) == ("update", 2, None)]
    assert math.isclose(value, of_round[-1]["policy/entropy"], rel_tol=1e-3)
    assert rest.startswith(
        f"the best policy so far is that of round 1, {results['first']['policy']}; go on from there: "
    )
    assert f"gradus rerun {run} update --from-round 2 --set" in rest
    shown = next(r for r in program.json("runs")["runs"] if r["run"] == run)
    assert (shown["status"], "guard's max" in shown["error"]) == ("failed", True)
    assert program.json("train", str(RECIPE), "--rounds", "2")["policy"] == results["second"]["policy"]
