"""Verbs alone, on a person's own files: the fields that scripts rely on, and what a changed file changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Program = Any


def lines(path: Path, *rows: object) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_ingest_counts_what_it_refuses(new_program: Callable[..., Program], tmp_path: Path) -> None:
    file = lines(
        tmp_path / "mine.jsonl",
        {"prompt": "1 + 1 =", "answer": "2"},
        {"prompt": "1 + 1 =", "answer": "2"},
        {"prompt": "2 + 2 =", "answer": None},
        "{this is no JSON",
        {"prompt": "3 + 3 =", "answer": "1,006"},
    )
    program = new_program()
    found = program.json("ingest", file, "--map", "question=prompt", "--out", str(tmp_path / "out.jsonl"))
    assert found["rows"] == 2
    assert sum(found["refused"].values()) == 3
    assert [json.loads(row)["answer"] for row in Path(found["out"]).read_text().splitlines()] == ["2", "1006"]
    code, _, err = program.run("ingest", file, "--map", "question=prompt", "--strict")
    assert code == 1
    assert "line 2" in err


def test_curate_takes_anybodys_difficulty_and_gives_its_reasons(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    names = "abcdef"
    problems = lines(tmp_path / "p.jsonl", *({"problem_id": n, "question": f"{n}?", "answer": "1"} for n in names))
    history = {"a": [0.0, 1.0], "b": [0.5, 0.5, 0.5], "c": [0.25], "d": [1.0, 0.0, 1.0, 0.0]}
    difficulty = lines(
        tmp_path / "d.jsonl",
        *({"problem_id": n, "n": 8, "k": 4, "history": history[n]} for n in "abcd"),
        {"problem_id": "e", "n": 8, "k": 0},
        {"problem_id": "f", "n": 8, "k": 8},
    )
    found = new_program().json(
        *("curate", "--problems", problems, "--difficulty", difficulty),
        *("--filter", "pass_rate:low=0.1,high=0.9", "--rank", "historical_std", "--top", "3"),
    )
    # Standard deviations (population): a 0.5, d 0.5, b 0, c 0; e and f are never and always solved.
    assert set(found["problem_ids"][:2]) == {"a", "d"}
    assert (found["kept"], found["dropped"]) == (3, 3)
    assert sum(found["reasons"].values()) == 3
    assert Path(found["out"]).exists()


def test_a_changed_reward_file_is_noticed_and_an_unchanged_one_reused(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    rows = lines(
        tmp_path / "r.jsonl", *({"problem_id": str(i), "completion": "#### 1", "answer": "1"} for i in range(4))
    )
    reward = tmp_path / "mine.py"
    program = new_program()
    means = []
    for value in (1.0, 1.0, 0.5):
        reward.write_text(f"def judge(rows):\n    return [{value}] * len(rows)\n")
        found = program.json("score", "--rollouts", rows, "--reward", f"{reward}:judge")
        means.append((found["mean_reward"], found["reused"]))
    assert means == [(1.0, False), (1.0, True), (0.5, False)]
    promised = {"rows", "correct", "wrong", "unparsed", "timeout", "error", "mean_reward", "seconds", "out"}
    assert promised <= set(found)


def test_evaluate_gives_intervals_for_every_k(new_program: Callable[..., Program]) -> None:
    program = new_program()
    found = program.json("evaluate", "--problems", "heldout.jsonl", "-n", "2", "--reward", "numeric")
    assert set(found["pass_at"]) == {"1", "2"}
    for cell in found["pass_at"].values():
        assert cell["low"] <= cell["value"] <= cell["high"]
    assert found["rows"] == 48
    assert {"maj_at", "out"} <= set(found)
