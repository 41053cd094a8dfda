"""A user's reward with values between 0 and 1, through the real program; every figure counted again here."""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from gradus.data.lake.schema import PROBLEMS as TABLE
from gradus.tasks.stages.score.trial import trial_rows
from tests.e2e.conftest import RECIPE, Program

PROBLEM = TABLE.arrow.names

# The share of the completion's last eight characters that are digits; 1 and 0 are rare.
GRADED = """
def graded(rows):
    return [min(1.0, (1 + sum(c.isdigit() for c in row["completion"][-8:])) / 10) for row in rows]
"""
PROBLEMS = [
    {"problem_id": f"p{i}", "question": f"{i} + {i + 1} =", "answer": str(2 * i + 1), "domain": f"d{i % 2}"}
    for i in range(6)
]
THRESHOLD = 0.5


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    made = new_program(warm=True)
    (made.home / "mine.py").write_text(GRADED)
    (made.home / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    return made


def in_groups(completions: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The grades of each problem's completions, by the definition of the reward."""
    grades: dict[str, list[float]] = defaultdict(list)
    for row in completions:
        digits = len([c for c in row["completion"][-8:] if c in "0123456789"])
        grades[row["problem_id"]].append((1 + digits) / 10)
    return grades


COMMAND = ("--problems", "p.jsonl", "-n", "4", "--max-tokens", "24", "--reward", "mine.py:graded")


def test_a_graded_reward_with_a_threshold_is_evaluated_by_it(program: Program) -> None:
    found = program.json("evaluate", *COMMAND, "--set", f"correct_at={THRESHOLD}", "--out", "e.parquet")
    grades = in_groups(program.rows("rollouts/*"))
    assert sum(map(len, grades.values())) == 24
    assert len({g for values in grades.values() for g in values}) > 1
    table = {row["problem_id"]: row for row in pq.read_table(program.home / "e.parquet").to_pylist()}
    assert set(table) == set(grades)
    for problem, values in grades.items():
        row = table[problem]
        assert (row["n"], row["k"]) == (4, len([v for v in values if v >= THRESHOLD]))
        assert row["reward_n"] == 4
        assert row["reward_mean"] == pytest.approx(statistics.fmean(values), abs=1e-12)
        assert row["reward_variance"] == pytest.approx(statistics.pvariance(values), abs=1e-12)
    right = [v >= THRESHOLD for values in grades.values() for v in values]
    assert found["pass_at"]["1"]["value"] == pytest.approx(statistics.fmean(right), abs=1e-12)
    everything = [v for values in grades.values() for v in values]
    assert found["reward_mean"]["value"] == pytest.approx(statistics.fmean(everything), abs=1e-12)
    assert (found["coverage"], found["judged"], found["rollouts"]) == (1.0, 24, 24)


def test_a_graded_reward_alone_measures_difficulty_by_mean_and_variance(program: Program) -> None:
    code, _, err = program.run("profile", *COMMAND, "--json")
    assert code == 1
    assert "have no verdict on correctness" in err
    assert "max_unjudged_frac" in err
    assert "`correct_at`" in err
    found = program.json("profile", *COMMAND, "--set", "max_unjudged_frac=1", "--out", "d.parquet")
    assert (found["judged"], found["rollouts"], found["coverage"]) == (0, 24, 0.0)
    grades = in_groups(program.rows("rollouts/*"))
    table = {row["problem_id"]: row for row in pq.read_table(program.home / "d.parquet").to_pylist()}
    assert set(table) == set(grades)
    for problem, values in grades.items():
        row = table[problem]
        assert (row["n"], row["k"], row["pass_rate"], row["reward_n"]) == (0, 0, None, 4)
        assert row["reward_mean"] == pytest.approx(statistics.fmean(values), abs=1e-12)
        assert row["reward_variance"] == pytest.approx(statistics.pvariance(values), abs=1e-12)
    plan = program.json(
        *("curate", "--problems", "p.jsonl", "--difficulty", "d.parquet", "--rank", "reward_variance", "--top", "1")
    )
    most = max(statistics.pvariance(values) for values in grades.values())
    assert plan["problem_ids"][0] in [p for p, v in grades.items() if statistics.pvariance(v) == pytest.approx(most)]


def test_what_could_never_be_evaluated_is_refused_before_anything_is_sampled(program: Program) -> None:
    before = sorted((program.home / "lake").glob("*/*"))
    recipe = ("train", str(RECIPE), "--set", 'score.rewards=[{name="format"}]')
    for command in (("evaluate", *COMMAND[:6], "--reward", "format"), recipe):
        code, _, err = program.run(*command, "--json")
        assert code == 2
        assert "needs to know which answers are correct, and the rewards cannot say so (format)" in err
    assert sorted((program.home / "lake").glob("*/*")) == before


def test_training_by_a_graded_reward_with_a_threshold_comes_to_its_end(program: Program) -> None:
    rewards = f'score.rewards=[{{name="{program.home}/mine.py:graded"}}]'
    found = program.json("train", str(RECIPE), "--set", rewards, "--set", f"score.correct_at={THRESHOLD}")
    assert (found["updates"], found["before"]["coverage"], found["after"]["coverage"]) == (1, 1.0, 1.0)


def test_a_reward_that_can_judge_no_row_is_refused_before_a_token_is_sampled(program: Program) -> None:
    (program.home / "texts.py").write_text("def texts(rows):\n    return ['right' for _ in rows]\n")
    reward = f'score.rewards=[{{name="{program.home}/texts.py:texts"}}]'
    code, _, err = program.run("train", str(RECIPE), "--set", "name=texts", "--set", reward)
    assert code == 1
    assert "texts.py:texts judged none of the 2 rows that it was tried on: the function returned str" in err
    assert _stages(program, "texts-*") <= {"ingest"}
    # It was tried on rows with every column that rollouts have.
    first = next(row for row in program.rows("rollouts/*") if not row.get("plan_id"))
    sampled = {name for name, value in first.items() if value is not None}
    (row,) = trial_rows([{**dict.fromkeys(PROBLEM), "problem_id": "p", "answer": "1"}])  # type: ignore[typeddict-item]
    assert sampled - {"prompt_tokens", "completion_tokens", "logprobs"} <= set(row)


def _stages(program: Program, run: str) -> set[str]:
    return {event["stage"] for event in program.events(run) if event["event"] == "stage_started"}
