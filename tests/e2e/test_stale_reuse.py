"""Through the real program: what a user's reward loads decides whether its scores are reused, and nothing beside it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Program = Any


def counts(program: Program) -> dict[str, int]:
    tables = [name.partition("/")[0] for name in program.manifests()]
    return {table: tables.count(table) for table in ("rollouts", "scores")}


def test_a_changed_helper_is_judged_again_and_samples_nothing(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program = new_program()
    (tmp_path / "mine.py").write_text("import helper\ndef judge(rows): return [helper.VALUE] * len(rows)\n")
    (tmp_path / "helper.py").write_text("VALUE = 1.0\n")
    command = ("evaluate", "--problems", "heldout.jsonl", "-n", "2", "--reward", f"{tmp_path}/mine.py:judge")
    assert program.json(*command)["pass_at"]["1"]["value"] == 1.0
    assert counts(program) == {"rollouts": 1, "scores": 1}
    (tmp_path / "beside.py").write_text("VALUE = 0.0\n")
    assert program.json(*command)["reused"]
    assert counts(program) == {"rollouts": 1, "scores": 1}
    (tmp_path / "helper.py").write_text("VALUE = 0.0\n")
    assert program.json(*command)["pass_at"]["1"]["value"] == 0.0
    assert counts(program) == {"rollouts": 1, "scores": 2}


def test_a_module_loaded_only_while_judging_fails_once_and_then_counts(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program = new_program()
    rows = tmp_path / "r.jsonl"
    rows.write_text('{"problem_id": "a", "completion": "x", "answer": "1"}\n')
    (tmp_path / "mine.py").write_text(
        "def judge(rows): return [__import__(rows[0]['completion'] + 'y').VALUE] * len(rows)\n"
    )
    (tmp_path / "xy.py").write_text("VALUE = 0.25\n")
    command = ("score", "--rollouts", str(rows), "--reward", f"{tmp_path}/mine.py:judge")
    code, _, err = program.run(*command)
    assert code == 1
    assert "the reward mine.py loaded xy.py only while it judged" in " ".join(err.split())
    assert counts(program)["scores"] == 0
    assert program.json(*command)["mean_reward"] == 0.25
    assert program.json(*command)["reused"]
    (tmp_path / "xy.py").write_text("VALUE = 0.75\n")
    assert program.json(*command)["mean_reward"] == 0.75
