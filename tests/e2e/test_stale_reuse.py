"""Through the real program: what is computed again after an edit, and where that ends."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.e2e.conftest import RECIPE, Program


def counts(program: Program) -> dict[str, int]:
    tables = [name.partition("/")[0] for name in program.manifests()]
    return {table: tables.count(table) for table in ("rollouts", "scores")}


def test_a_changed_helper_is_judged_again_and_samples_nothing(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program = new_program(warm=True)
    (tmp_path / "mine.py").write_text("import helper\ndef judge(rows): return [helper.VALUE] * len(rows)\n")
    (tmp_path / "helper.py").write_text("VALUE = 1.0\n")
    command = (
        "evaluate",
        "--problems",
        "heldout.jsonl",
        "-n",
        "2",
        "--set",
        "sample.max_tokens=50",
        "--reward",
        f"{tmp_path}/mine.py:judge",
    )
    assert program.json(*command)["pass_at"]["1"]["value"] == 1.0
    assert counts(program) == {"rollouts": 1, "scores": 1}
    (plan,) = (pq.read_table(path.parent) for path in (program.home / "lake").glob("plan/*/_manifest.json"))
    assert set(plan["max_tokens"].to_pylist()) == {50}
    (tmp_path / "beside.py").write_text("VALUE = 0.0\n")
    assert program.json(*command)["reused"]
    assert counts(program) == {"rollouts": 1, "scores": 1}
    (tmp_path / "helper.py").write_text("VALUE = 0.0\n")
    assert program.json(*command)["pass_at"]["1"]["value"] == 0.0
    assert counts(program) == {"rollouts": 1, "scores": 2}


HELPER = """from gradus.models.rewards.judges.numeric import judge
def judged(rows): return [judge(row, row["answer"], 100000).value for row in rows]
"""


def made(program: Program) -> dict[str, int]:
    """Artifacts that cost tokens or training, by table."""
    tables = [name.partition("/")[0] for name in program.manifests()]
    return {table: tables.count(table) for table in ("rollouts", "checkpoints", "train_states")}


def correct_one(program: Program, run: str, corrected: Path) -> str:
    """Write the training problems with another gold answer of one that a run tried once, in vain; return its id."""
    judged = {event["output"] for event in program.events(run) if event.get("stage") == "score"}
    scores = [row for name in judged for row in program.rows(name)]
    tried = Counter(row["problem_id"] for row in scores)
    solved = {row["problem_id"] for row in scores if row["correct"]}
    question, name = next(
        (row["question"], row["problem_id"])
        for row in program.rows("problems/*")
        if row["source"] == "train" and row["problem_id"] not in solved and tried[row["problem_id"]] == 1
    )
    rows = [json.loads(line) for line in (program.home / "train.jsonl").read_text().splitlines()]
    changed = [{**row, "answer": "123456"} if row["question"] == question else row for row in rows]
    assert sum(row["answer"] == "123456" for row in changed) == 1
    corrected.write_text("".join(json.dumps(row) + "\n" for row in changed))
    return name


def test_a_corrected_answer_and_another_reward_with_the_same_verdicts_generate_and_train_nothing(
    undisturbed: tuple[Program, dict[str, Any]], tmp_path: Path
) -> None:
    program, first = undisturbed
    before = made(program)
    name = correct_one(program, first["run"], tmp_path / "corrected.jsonl")
    (tmp_path / "mine.py").write_text("import helper\ndef judge(rows): return helper.judged(rows)\n")
    (tmp_path / "helper.py").write_text(HELPER)
    rewards = f'score.rewards=[{{name="{tmp_path}/mine.py:judge"}}]'
    result = program.json("train", str(RECIPE), "--set", f"problems={tmp_path}/corrected.jsonl", "--set", rewards)
    assert result["tokens_generated"] == 0
    assert result["stages"]["score"]["reused"] == 0
    assert result["policy"] == first["policy"]
    assert made(program) == before
    found = program.json("sql", f"select distinct run, answer from samples where problem_id = '{name}'")["rows"]
    assert dict(found)[result["run"]] == "123456"
