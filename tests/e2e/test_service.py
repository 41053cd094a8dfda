"""The place itself: what the machine can do, and what MLflow hears of a run later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Program = Any


def test_what_could_not_be_told_is_told_later(new_program: Callable[..., Program], tmp_path: Path) -> None:
    program = new_program(reports=True)
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    code, out, err = program.run("ingest", str(rows), "--json", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert code == 0, err
    assert '"rows": 1' in out
    run = program.json("runs")["runs"][0]["run"]
    assert f"gradus sync {run}" in err
    code, out, err = program.run("sync", run)
    assert (code, err) == (0, "")
    assert "events sent" in out
    assert program.mlflow_states(program.launches()[0]) == ["FINISHED", "FINISHED"]


def test_a_run_without_a_reporter_is_reported_when_it_is_wanted(new_program: Callable[..., Program]) -> None:
    program = new_program()
    (program.home / "mine.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    code, _, err = program.run("ingest", "mine.jsonl", "--json", GRADUS_REPORT="never")
    assert code == 2
    assert "GRADUS_REPORT is 'never'; set it to now or later" in err
    assert not (program.home / "runs").exists()
    program.json("ingest", "mine.jsonl")
    run = program.json("runs")["runs"][0]["run"]
    assert not (program.home / "runs" / run / "logs" / "tracking.log").exists()
    assert program.run("sync", run)[0] == 0
    assert program.mlflow_states(program.launches()[0]) == ["FINISHED", "FINISHED"]


def test_doctor_and_methods_say_what_there_is(new_program: Callable[..., Program]) -> None:
    program = new_program()
    checks = program.json("doctor")["checks"]
    assert {"torch", "GPU", "vLLM"} <= {check["name"].split(" ")[0] for check in checks}
    assert all(check["cure"] for check in checks if not check["ok"])
    found = program.json("methods")
    assert {"grpo", "dr_grpo", "rloo"} <= set(found["advantage"])
