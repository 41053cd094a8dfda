"""Verbs alone, on a user's own files: the fields that scripts rely on, and what a changed file changes."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gradus.models.policy import load_policy
from tests.e2e.conftest import RECIPE, Program

BUNDLED = Path(__file__).parents[2] / "data" / "samples" / "policy"


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
    program = new_program(warm=True)
    found = program.json("ingest", file, "--map", "question=prompt", "--out", str(tmp_path / "out.jsonl"))
    assert found["rows"] == 2
    assert sum(found["refused"].values()) == 3
    assert "note: problems: 3 of 5 rows are left out" in " ".join(program.told().split())
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
    found = new_program(warm=True).json(
        *("curate", "--problems", problems, "--difficulty", difficulty),
        *("--filter", "pass_rate:low=0.1,high=0.9", "--rank", "historical_std", "--top", "3"),
    )
    # Standard deviations (population): a 0.5, d 0.5, b 0, c 0; e and f are never and always solved.
    assert set(found["problem_ids"][:2]) == {"a", "d"}
    assert (found["kept"], found["dropped"]) == (3, 3)
    assert sum(found["reasons"].values()) == 3
    assert Path(found["out"]).exists()


def test_an_adapter_is_rolled_out_by_name_and_no_stage_begins_that_would_train_it_as_a_whole_policy(
    new_program: Callable[..., Program], make_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_adapter(tmp_path / "adapter", load_policy(BUNDLED), "bundled")
    problems = lines(tmp_path / "p.jsonl", {"problem_id": "a", "question": "1 + 1 =", "answer": "2"})
    plan = lines(tmp_path / "plan.jsonl", {"problem_id": "a", "group_id": "a@r0h0", "n": 2, "max_tokens": 4})
    program = new_program(warm=True)
    found = program.json("rollout", "--plan", plan, "--problems", problems, "--policy", str(folder))
    assert found["rows"] == 2
    code, _, err = program.run("train", str(RECIPE), "--set", f"policy={folder}")
    assert code == 1
    assert "is an adapter: update.lora trains it" in err
    # Two checkpoints: the adapter's and its base's.
    assert len(list((program.home / "lake" / "checkpoints").iterdir())) == 2
    made = {path.name for path in (program.home / "lake").iterdir() if path.name[0] not in "._"}
    assert made == {"checkpoints", "plan", "problems", "rollouts"}


@pytest.mark.parametrize("planned", [True, False], ids=["with seeds", "without seeds"])
def test_another_seed_samples_a_plan_anew(new_program: Callable[..., Program], tmp_path: Path, planned: bool) -> None:
    asked = [{"problem_id": f"p{i}", "question": f"{i} + 21 =", "answer": str(i + 21)} for i in range(8)]
    problems = lines(tmp_path / "p.jsonl", *asked)
    drawn = [{"problem_id": f"p{i}", "group_id": f"p{i}@r0h0", "n": 4, "max_tokens": 8, "seed": i} for i in range(8)]
    plan = lines(tmp_path / "plan.jsonl", *({k: v for k, v in row.items() if planned or k != "seed"} for row in drawn))
    program, found = new_program(warm=True), []
    for seed in ("0", "7", "8"):
        folder = Path(program.json("rollout", "--plan", plan, "--problems", problems, "--seed", seed)["out"])
        table = pq.read_table(folder / "part-00000.parquet", columns=["seed", "completion"])
        found.append((table.column("seed").to_pylist(), table.column("completion").to_pylist()))
    assert len({seed for seeds, _ in found for seed in seeds}) == 3 * 8 * 4
    plain, seven, eight = (completions for _, completions in found)
    assert plain != seven != eight != plain
    assert program.json("rollout", "--plan", plan, "--problems", problems, "--seed", "7")["reused"]
