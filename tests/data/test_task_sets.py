"""The bundled tasks: worked solutions earn the whole reward of their task, others do not, no problem occurs twice."""

import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gradus.models.rewards import load, resolve
from tests.sandboxes import needs_sandbox

ROOT = Path(__file__).parents[2]
TASKS = {path.stem: tomllib.loads(path.read_text()) for path in sorted((ROOT / "recipes" / "tasks").glob("*.toml"))}


def rows(name: str) -> list[dict[str, Any]]:
    return pq.read_table(ROOT / "data" / "samples" / f"{name.removeprefix('bundled:')}.parquet").to_pylist()


def test_ten_kinds_are_bundled() -> None:
    assert len(TASKS) == 10
    assert all(task["problems"] == f"bundled:{name}" for name, task in TASKS.items())
    assert all(task["evaluate"]["problems"] == f"bundled:{name}-heldout" for name, task in TASKS.items())


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs_sandbox) if n == "programs" else n for n in TASKS])
def test_a_worked_solution_earns_the_whole_reward_and_that_of_another_problem_seldom(name: str) -> None:
    (reward,) = TASKS[name]["score"]["rewards"]
    judge = load(resolve(reward["name"], {key: value for key, value in reward.items() if key != "name"}))
    trained, held_out = rows(f"bundled:{name}"), rows(f"bundled:{name}-heldout")
    assert (len(trained), len(held_out)) == (240, 60)
    assert len({row["question"] for row in [*trained, *held_out]}) == 300
    assert len({row["domain"] for row in trained}) == 3
    whole = [judge({**row, "completion": row["solution"]}, row["answer"] or "") for row in [*trained, *held_out]]
    assert [verdict.value for verdict in whole] == [1.0] * 300
    swapped = zip(held_out, [*held_out[3:], *held_out[:3]], strict=True)
    others = [judge({**row, "completion": other["solution"]}, row["answer"] or "") for row, other in swapped]
    assert sum(verdict.value == 1.0 for verdict in others) < 30
