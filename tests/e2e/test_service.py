"""A run that no reporter follows, and what MLflow hears of it later."""

from collections.abc import Callable

from tests.e2e.conftest import Program


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
