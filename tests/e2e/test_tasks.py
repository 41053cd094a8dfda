"""`gradus demo --task`: the second policy on its tasks, each with the reward of its kind."""

import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from gradus.models.rewards import load, resolve
from tests.e2e.conftest import SAMPLES, Program
from tests.e2e.methods.made import Made
from tests.sandboxes import needs_sandbox

KINDS = ("choice", "records", "tables", "constraints", "sorting", "dates", "programs", "sat", "translation", "boxes")
SAMPLE = ("records", "programs", "sat")
"""Those of every run of the tests; `GRADUS_METHODS=all` takes all."""
CHOSEN = KINDS if os.environ.get("GRADUS_METHODS") == "all" else SAMPLE
SMALL = ("ingest.limit=60", "profile.n=1", "curate.draw=16", "evaluate.sample.n=2", "evaluate.report.ks=[1]")
"""Enough for each of `SAMPLE`; with so few problems the training of tables fails."""
REWARDS: dict[str, tuple[str, dict[str, Any]]] = {
    "choice": ("choice", {}),
    "records": ("json_record", {}),
    "tables": ("sql_result", {}),
    "constraints": ("constraints", {}),
    "sorting": ("items", {"ordered": True}),
    "dates": ("month_distance", {}),
    "programs": ("program", {"score": "share"}),
    "sat": ("satisfied", {}),
    "translation": ("chrf", {}),
    "boxes": ("box_iou", {}),
}


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    return new_program(warm=True)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=needs_sandbox) if kind == "programs" else kind for kind in CHOSEN]
)
def test_a_task_trains_on_rewards_that_vary_within_groups(program: Program, kind: str) -> None:
    few = SMALL if kind in SAMPLE else ("profile.n=1", "curate.draw=24")
    small = [word for each in few for word in ("--set", each)]
    run = program.json("demo", "--task", kind, "--rounds", "1", "--run", kind, *small)
    assert 0.02 < run["before"]["pass_at"]["1"]["value"] < 0.98
    made = Made(program, kind)
    problems = {row["problem_id"]: row for row in pq.read_table(SAMPLES / f"{kind}.parquet").to_pylist()}
    rows = made.sampled(1)
    assert {problems[row["problem_id"]]["domain"].partition("/")[0] for row in rows} == {kind}
    groups = defaultdict[str, list[float]](list)
    judge = load(resolve(*REWARDS[kind]))
    for row in rows:
        problem = problems[row["problem_id"]]
        again = judge({**problem, "completion": row["completion"]}, problem["answer"] or "").value
        assert row["reward"] == pytest.approx(again)
        groups[row["group_id"]].append(row["reward"])
    assert any(len(set(each)) > 1 for each in groups.values())
    assert made.of("update", 1)[0]["output"].startswith("checkpoints/")


def test_a_task_that_does_not_exist_is_refused(program: Program) -> None:
    code, _, err = program.run("demo", "--task", "programms")
    assert (code, "there is no task programms; did you mean programs?" in err) == (2, True)
    code, _, err = program.run("train", "tasks", "--task", "sat", "--method", "no_such", "--dry-run")
    assert (code, "there is no method no_such" in err) == (2, True)
    assert program.json("train", "tasks", "--task", "sat", "--method", "dr_grpo", "--dry-run")["stages"]
