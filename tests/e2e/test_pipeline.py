"""The whole pipeline through the real program: runs, is reused, survives kills, notices damage, exits as it should."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests import servers
from tests.e2e.conftest import RECIPE, Program
from tests.patience import until

Undisturbed = tuple[Program, dict[str, Any]]


def test_every_stage_runs_and_the_answer_has_the_promised_fields(undisturbed: Undisturbed) -> None:
    _, result = undisturbed
    promised = {
        "run",
        "rounds",
        "updates",
        "tokens_generated",
        "tokens_trained",
        "seconds",
        "stages",
        "before",
        "after",
    }
    assert promised | {"out"} <= set(result)
    assert result["updates"] == 1
    assert result["tokens_generated"] > 1000
    ran = {"ingest", "curate", "hint", "rollout", "score", "wave", "difficulty", "update", "evaluate"}
    assert ran <= set(result["stages"])
    assert (Path(result["out"]) / "model.safetensors").is_file()
    assert 0.2 < result["before"]["pass_at"]["1"]["value"] < 0.6


def test_the_same_command_again_computes_nothing(undisturbed: Undisturbed) -> None:
    program, first = undisturbed
    before = program.manifests()
    again = program.json("train", str(RECIPE))
    assert again["tokens_generated"] == first["tokens_generated"]  # those of the run, by whichever command
    assert sum(stage["ran"] for stage in again["stages"].values()) == 0
    assert again["policy"] == first["policy"]
    assert program.manifests() == before


def test_prefect_calls_the_run_by_its_name_and_asks_for_no_slots(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    flow_run = program.launches(result["run"])[0]
    ((name, tags),) = program.prefect("select name, tags from flow_run where id = ?", flow_run)
    assert name == result["run"]
    assert json.loads(tags) == ["gradus", "train"]
    # Every set of tags of a task is a request for concurrency slots, seconds long while the server writes.
    tasks = program.prefect("select distinct tags from task_run where flow_run_id = ?", flow_run)
    assert [json.loads(tags) for (tags,) in tasks] == [[]]


def test_a_changed_reward_generates_no_token_for_what_was_rolled_out(undisturbed: Undisturbed) -> None:
    program, first = undisturbed
    result = program.json(
        "rerun", first["run"], "score", "--set", 'rewards=[{name="numeric"},{name="format",weight=0.1}]'
    )
    shown = program.json("show", result["run"])["attempts"]
    status = {(a["stage"], a["purpose"]): a["status"] for a in shown if not (a["purpose"] == "eval" and a["round"])}
    assert status["rollout", "train"] == status["rollout", "profile"] == status["rollout", "eval"] == "reused"
    assert status["score", "train"] == status["update", "train"] == "finished"


POINTS = ["curate:before_manifest#2", "rollout:after_shard#2", "score:before_manifest#2", "update:before_checkpoint#1"]
"""In the order in which a run comes to them."""


def test_a_process_killed_anywhere_costs_nothing_that_was_finished_and_takes_its_workers_along(
    undisturbed: Undisturbed, new_program: Callable[..., Program]
) -> None:
    calm, result = undisturbed
    wanted, kept = calm.manifests(), dict[str, bytes]()
    program = new_program()
    kill_the_flow_from_outside(program)
    for point in POINTS:
        code, _, err = program.run("train", str(RECIPE), "--json", GRADUS_FAULT=point)
        assert code != 0, point
        if not point.startswith("curate"):  # there the flow's own process dies and can say nothing
            assert "SIGKILL" in err
            assert "Traceback" not in err
        found = program.manifests()
        assert {name: wanted[name] for name in found} == found
        assert set(found) > set(kept), point
        kept = found
    program.reports = True
    again = program.json("train", str(RECIPE))
    assert again["policy"] == result["policy"]
    assert {name: wanted[name] for name in program.manifests()} == program.manifests()
    reused = sum(stage["reused"] for stage in again["stages"].values())
    assert reused >= len([name for name in kept if not name.startswith(("checkpoints/", "problems/"))])
    killed, *_, finished = program.launches()
    assert (program.prefect_state(killed), program.prefect_state(finished)) == ("CRASHED", "COMPLETED")
    assert set(program.mlflow_states(killed)) == {"FINISHED", "KILLED"}
    assert set(program.mlflow_states(finished)) == {"FINISHED"}


def kill_the_flow_from_outside(program: Program) -> None:
    """Train until rollouts are written, and kill -9 the command within a stage; no worker may survive it."""
    program.reports = True
    process = program.start("train", str(RECIPE), "--json")
    program.wait_for("rollouts/*/part-*.parquet")

    def stopped_within_a_stage() -> bool:
        process.send_signal(signal.SIGSTOP)
        within = program.events()[-1]["event"] == "stage_started"
        if not within:
            process.send_signal(signal.SIGCONT)
        return within

    until(stopped_within_a_stage, 60, 0.05)
    workers = servers.workers_of(process.pid)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=15)
    assert not alive
    program.reports = False


def test_ctrl_c_ends_everything_and_what_goes_on_after_it_survives_the_death_of_its_server(
    undisturbed: Undisturbed, new_program: Callable[..., Program]
) -> None:
    calm, result = undisturbed
    program = new_program(alone=True, reports=True)
    process = program.start("train", str(RECIPE))
    program.wait_for("rollouts/*/part-*.parquet")
    workers = servers.workers_of(process.pid)
    assert workers
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
    assert process.wait(timeout=300) == 130
    assert "run the same command again to resume" in program.told()
    assert "Traceback" not in program.told()
    _, alive = psutil.wait_procs(workers, timeout=15)
    assert not alive
    assert [run["status"] for run in program.json("runs")["runs"]] == ["killed"]
    process = program.start("train", str(RECIPE), "--json")
    program.wait_for("scores/*/_manifest.json")
    (served,) = servers.served(program.home)
    os.kill(served.server, signal.SIGKILL)
    assert process.wait(timeout=600) == 0, program.told()
    assert json.loads((program.home / "stdout").read_text())["policy"] == result["policy"]
    wanted = calm.manifests()
    assert {name: wanted[name] for name in program.manifests()} == program.manifests()
    (run,) = program.json("runs")["runs"]
    shown = program.json("show", run["run"])["attempts"]
    assert {row["status"] for row in shown[-10:]} <= {"finished", "reused"}
    stopped, finished = program.launches()
    assert program.prefect_state(stopped) not in ("RUNNING", "COMPLETED")
    assert program.prefect_state(finished) == "COMPLETED"
    query = "select distinct state_type from task_run where flow_run_id = ?"
    assert program.prefect(query, finished) == [("COMPLETED",)]
    assert "RUNNING" not in program.mlflow_states(stopped)
    assert set(program.mlflow_states(finished)) == {"FINISHED"}


def test_a_flipped_bit_is_named_and_its_removal_recomputes_the_same_bytes(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    before = program.manifests()
    folder = program.outputs(result["run"], "score")[0]
    shard = next(folder.glob("part-*.parquet"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(bytes(content))
    code, _, err = program.run("train", str(RECIPE), "--json")
    assert code == 1
    assert str(shard) in err
    assert "Traceback" not in err
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    program.json("train", str(RECIPE))
    assert program.manifests() == before


def test_anybodys_completions_are_scored_and_too_many_errors_fail_after_the_good_rows_are_kept(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program = new_program(warm=True)
    rows = [{"problem_id": str(i), "completion": f"#### {i}", "answer": str(i)} for i in range(9)]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward = tmp_path / "reward.py"
    reward.write_text("def judge(rows):\n    return [None if r['problem_id'] == '3' else 1.0 for r in rows]\n")
    code, _, err = program.run("score", "--rollouts", str(file), "--reward", f"{reward}:judge", "--json")
    assert code == 1
    assert "max_error_frac" in err
    kept = program.json("sql", "select outcome, count(*) as n from scores group by outcome order by n")
    assert [8] in [row[1:] for row in kept["rows"]]
    good = program.json("score", "--rollouts", str(file), "--reward", "numeric")
    assert (good["rows"], good["correct"], good["mean_reward"]) == (9, 9, 1.0)
    assert {"wrong", "unparsed", "timeout", "error", "seconds", "reused", "out"} <= set(good)


def test_a_forced_stage_is_computed_again_and_nothing_else(undisturbed: Undisturbed) -> None:
    program, first = undisturbed
    before = program.manifests()
    again = program.json("rerun", first["run"], "score", "--round", "1")
    ran = {name: stage["ran"] for name, stage in again["stages"].items() if stage["ran"]}
    assert ran == {"score": 3}  # of the rollouts, of the hinted ones, of the evaluation
    assert program.manifests() == before
