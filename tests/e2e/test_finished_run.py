"""What a finished run shows: one writer of each metric, wrong names that start nothing, a run of an earlier version."""

import contextlib
import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

from gradus.data.lake.store import Ref, Store
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.records import StageStarted
from gradus.tasks.stages.context import read_report
from gradus.tasks.tracking.metric_table import EVERY_STAGE, MAX_ON_RUN, find
from tests.e2e.conftest import Program
from tests.patience import until

Undisturbed = tuple[Program, dict[str, Any]]


ROW = "select run_uuid from tags where key = 'gradus.first_invocation' and value = ?"


def first_invocation(program: Program, run: str) -> str:
    """What names the row of a run in MLflow, however often it was continued."""
    first = program.events(run)[0]
    assert first["event"] == "run_started"
    return first["invocation"]


def curves(program: Program, run: str) -> list[tuple[str, int, int]]:
    """Name, step and number of points of every metric of the run as a whole, as MLflow's database has them."""
    query = f"""select m.key, m.step, count(*) from metrics m join runs r using (run_uuid)
        where r.status = 'FINISHED' and run_uuid in ({ROW}) group by 1, 2"""
    with contextlib.closing(sqlite3.connect(program.home / "mlflow" / "mlflow.db")) as database:
        return until(lambda: database.execute(query, [first_invocation(program, run)]).fetchall(), 600, 0.5)


def test_every_metric_of_a_training_has_one_point_a_round_and_one_stage_that_writes_it(
    undisturbed: Undisturbed,
) -> None:
    program, result = undisturbed
    points = curves(program, result["run"])
    names = {name for name, _, _ in points}
    assert {"2 reward/mean", "5 length/mean", "6 data/kept_frac", "2 reward/mean.escalate1"} <= names
    assert {"8 time/compute_s.rollout", "1 eval/pass_at_1", "5 length/mean.eval", "9 total/cpu_s"} <= names
    assert len(names) <= MAX_ON_RUN
    assert [point for point in points if point[2] != 1 and not point[0].startswith("9 total/")] == []
    # The journal says which stage wrote which: times apart, that each stage has, each name has one.
    folder = program.home / "runs" / result["run"]
    stages: dict[str, set[str]] = defaultdict(set)
    begun: dict[str, StageStarted] = {}
    for event in read_events(folder):
        if event["event"] == "stage_started":
            begun[event["attempt"]] = event
        elif event["event"] == "stage_finished":
            start = begun[event["attempt"]]
            report = read_report(Store(program.home / "lake"), Ref.parse(start["output"]))
            for name in {**report["metrics"], **event["clock"], **{k: 0 for step in report["steps"] for k in step}}:
                stages[name].add(start["stage"])
    shared = {name for name, writers in stages.items() if len(writers) > 1}
    assert {name for name in shared if not name.startswith("perf/")} == set()
    entries = {name: find(name) for name in stages}
    assert [name for name, entry in entries.items() if entry is None] == []
    writers = {name: set(entry.writer.split(", ")) for name, entry in entries.items() if entry is not None}
    assert [name for name in stages if not stages[name] <= writers[name] and writers[name] != {EVERY_STAGE}] == []


def test_the_start_of_a_worker_is_no_time_of_its_stage(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    events = program.events(result["run"])
    begun = next(each for each in events if each["event"] == "stage_started" and each["stage"] == "rollout")
    ended = next(each for each in events if each["event"] == "stage_finished" and each["attempt"] == begun["attempt"])
    waited_s = ended["time"] - begun["time"] - ended["seconds"]  # the first of its kind: torch is imported
    assert waited_s > ended["seconds"] - ended["clock"]["perf/compute_s"]


def test_mlflow_says_what_a_training_was_how_it_ended_and_which_checkpoints_it_made(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    curves(program, result["run"])  # told to its end
    with contextlib.closing(sqlite3.connect(program.home / "mlflow" / "mlflow.db")) as database:
        runs = "select run_uuid from tags where key = 'prefect.flow_run_id' and value = ?"

        def ask(sql: str) -> list[tuple[Any, ...]]:
            return database.execute(f"with mine as ({runs}) {sql}", [program.launches(result["run"])[0]]).fetchall()

        row = [first_invocation(program, result["run"])]
        select = f"select run_uuid, artifact_uri from runs where run_uuid in ({ROW})"
        ((parent, folder),) = database.execute(select, row).fetchall()
        ((note,),) = ask(f"select value from tags where key = 'mlflow.note.content' and run_uuid = '{parent}'")
        params = dict(ask(f"select key, value from params where run_uuid = '{parent}'"))
        outputs = ask(f"select step from inputs where source_type = 'RUN_OUTPUT' and source_id = '{parent}'")
        measured = ask(
            "select g.tag_value, m.metric_step, m.dataset_name from logged_model_metrics m "
            "join logged_model_tags g using (model_id) where m.run_id in mine "
            "and m.metric_name = '1 eval/pass_at_1' and g.tag_key = 'gradus.output'"
        )
        roles = ask(
            f"select value from input_tags join inputs using (input_uuid) where destination_id = '{parent}' order by 1"
        )
    lines = note.splitlines()  # one more if later commands found everything computed
    assert len(lines) in (5, 6)
    assert "of the recipe tiny: seed 3, rounds 1" in lines[0]
    assert lines[1].startswith("- Finished after 1 round in ")
    before, after = (result[when]["pass_at"]["1"]["value"] for when in ("before", "after"))
    assert lines[2].startswith(
        f"- pass@1: {before:.3f} at the start, {after:.3f} at last; gain {result['gain']:+.3f} ("
    )
    assert "`rounds 10 → 1`" in lines[3]
    assert f"`gradus train {result['run']} --rounds 2` resumes" in lines[4]
    assert (params["curate.sampler"], params["curate.draw"], params["score.rewards"]) == ("variance", "16", "numeric")
    assert outputs == [(1,)]
    assert (result["policy"], 0, "problems") in measured
    assert len(measured) == 2
    assert roles == [("evaluation",), ("training",)]
    changes = (Path(folder.removeprefix("file://")) / "recipe_diff.txt").read_text()
    assert "curate.draw = 16    (default: " in changes


def test_a_rerun_of_what_there_is_not_starts_nothing(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    before = sorted((program.home / "runs").iterdir())
    journal = (program.home / "runs" / result["run"] / "events.jsonl").read_bytes()
    servers = sorted((program.home / "logs").glob("*")) if (program.home / "logs").exists() else []
    code, out, err = program.run("rerun", result["run"], "update", "--round", "7")
    assert (code, out) == (2, "")
    assert "had no update in round 7; it had one in round 1" in err
    assert sorted((program.home / "runs").iterdir()) == before
    assert (program.home / "runs" / result["run"] / "events.jsonl").read_bytes() == journal
    assert (sorted((program.home / "logs").glob("*")) if (program.home / "logs").exists() else []) == servers


def test_a_run_that_an_earlier_version_wrote_goes_on_by_its_name(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    path = program.home / "runs" / result["run"] / "run.json"
    stored = json.loads(path.read_text())
    old = json.loads(path.read_text())
    del old["check"]
    (suite,) = old["recipe"]["evaluate"].pop("suites")
    old["recipe"]["evaluate"] = {key: suite[key] for key in ("problems", "every", "sample", "report")}
    path.write_text(json.dumps(old))
    again = program.json("rerun", result["run"], "difficulty", "--round", "1")
    assert again["stages"]["difficulty"]["ran"] == 1
    assert sum(stage["ran"] for stage in again["stages"].values()) == 1
    assert json.loads(path.read_text()) == stored
    assert Path(again["out"]).is_dir()
