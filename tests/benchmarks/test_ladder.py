"""The ladder's task, its reward that checks lines, and the starts that it bundles."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file

LADDER = Path(__file__).parents[2] / "benchmarks" / "ladder"
DIGITS = [4, 5, 7, 9, 0, 1]
LINES = ["4444", "5937", "7696", "9540", "0599", "1654"]
"""Written by hand: a, b and c of each line are sums modulo 10 of what stands left of them and above."""


@pytest.fixture(scope="module")
def ladder() -> Iterator[dict[str, ModuleType]]:
    """The modules of the ladder, with its folder on the import path meanwhile."""
    sys.path.insert(0, str(LADDER))
    try:
        yield {name: importlib.import_module(name) for name in ("task", "rewards", "make")}
    finally:
        sys.path.remove(str(LADDER))
        for name in ("task", "rewards", "make"):
            del sys.modules[name]


def test_a_solution_has_a_line_for_each_digit(ladder: dict[str, ModuleType]) -> None:
    assert ladder["task"].solution_of(DIGITS, np.random.default_rng(0)) == LINES


def test_a_sloppy_student_writes_each_sum_wrong_at_its_rate_and_goes_on_with_it(
    ladder: dict[str, ModuleType],
) -> None:
    digits = np.random.default_rng(1).integers(0, 10, 20_000).tolist()
    wrong, sums = np.zeros(3), [0, 0, 0]
    for digit, line in zip(digits, ladder["task"].solution_of(digits, np.random.default_rng(2), 0.3), strict=True):
        above = digit
        for place, written in enumerate(map(int, line[1:])):
            wrong[place] += written != (sums[place] + above) % 10
            sums[place] = above = written
    assert wrong / len(digits) == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / len(digits)) ** 0.5)


@pytest.mark.parametrize(
    ("hint", "completion", "reward"),
    [
        ("", "\n".join([*LINES, "#### 654"]), 1.0),
        ("\n".join(LINES[:4]), "\n".join(["", *LINES[4:], "#### 654"]), 1.0),
        ("", "\n".join([*LINES[1:], "#### 654"]), 0.0),
        ("", "\n".join([*LINES[:2], "7697", *LINES[3:], "#### 654"]), 0.0),
        ("", "\n".join([*LINES, "#### 653"]), 0.0),
        ("", "#### 654", 0.0),
    ],
)
def test_the_reward_wants_every_line(ladder: dict[str, ModuleType], hint: str, completion: str, reward: float) -> None:
    row = {"question": "457901=", "hint_text": hint, "completion": completion}
    assert ladder["rewards"].lines([row]) == [reward]


def test_problems_are_the_same_each_time_and_none_is_trained_on_and_evaluated(
    ladder: dict[str, ModuleType], tmp_path: Path
) -> None:
    known = ladder["make"].write_problems(tmp_path)
    sets = {
        name: [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("held_out", "hard", "mixed")
    }
    questions = [row["question"] for rows in sets.values() for row in rows]
    assert set(questions) == known
    assert len(questions) == len(known)
    assert {len(row["question"]) - 1 for row in sets["hard"]} == {6, 7, 8}
    assert {len(row["question"]) - 1 for row in sets["mixed"]} == {3, 4, 5, 6, 7, 8}
    assert sets["hard"][0] == {
        "question": "457901=",
        "answer": "654",
        "solution": "\n".join(LINES),
        "domain": "checksums/6",
    }


@pytest.mark.parametrize("eta", ["0.1", "0.3"])
def test_a_start_is_small(eta: str) -> None:
    file = LADDER / "starts" / f"eta-{eta}" / "model.safetensors"
    num = sum(weight.size for weight in load_file(file).values())
    assert (file.stat().st_size < 500_000, 100_000 < num < 120_000) == (True, True)
