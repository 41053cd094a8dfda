"""What is learned of a round, decided by a user's functions: through the real program, and decided anew."""

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import RECIPE, Program

MINE = '''
import numpy as np
import torch
from gradus.components import component

@component("shape", needs=("group", "correct", "problem.domain"))
def apart(rows, *, worst: int = 1):
    """Learn from the first right row of each group and its last wrong ones; double the weight of a domain."""
    order = np.lexsort((np.arange(rows.num_rows), -np.nan_to_num(rows["correct"]), rows["group"]))
    size = rows.by("group").count(np.ones(rows.num_rows))[order]
    first = np.concatenate(([True], np.diff(rows["group"][order]) != 0))
    place = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    taken = np.zeros(rows.num_rows, dtype=bool)
    taken[order[(place == 0) | (place >= size - worst)]] = True
    weight = np.where(rows["problem.domain"] == "chain_sum/2", 2.0, 1.0)
    return {"taken": taken, "reason": "enough of its group", "weight": weight}

@component("advantage", needs=("reward", "group", "parts.numeric", "plan.n"))
def centred(rows):
    """Return the reward less its group's mean; all rows came of plans of four."""
    assert bool((rows["plan.n"] == 4).all()) and bool((rows["parts.numeric"] == rows["reward"]).all())
    return (rows["reward"] - rows.by("group").mean(rows["reward"])).nan_to_num(0.0)
'''


def settings(worst: int) -> tuple[str, ...]:
    shapes = f'update.shapes=[{{name="mine.py:apart", worst={worst}}}]'
    return ("--set", shapes, "--set", 'update.advantage="mine.py:centred"')


@pytest.fixture(scope="module")
def shaped(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    program = new_program()
    (program.home / "mine.py").write_text(MINE)
    return program, program.json("train", str(RECIPE), *settings(1), "--run", "shaped")


def learned(program: Program, checkpoint: str) -> dict[str, dict[str, Any]]:
    """The rows that an update learnt from, by its own table."""
    content = (program.home / "lake" / checkpoint / "rows.parquet").read_bytes()
    return {row["rollout_id"]: row for row in pq.read_table(io.BytesIO(content)).to_pylist()}


def test_an_update_learns_from_exactly_what_the_batch_takes(shaped: tuple[Program, dict[str, Any]]) -> None:
    program, told = shaped
    batch, rows = program.rows("batch/*"), learned(program, told["policy"])
    assert {row["rollout_id"] for row in batch if row["taken"]} == rows.keys()
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in batch:
        groups.setdefault(row["group_id"], []).append(row)
    # By the files: two of each group that no hinted one replaced, a right and a wrong one where there are both.
    correct = {row["rollout_id"]: row["correct"] for row in program.rows("scores/*")}
    for group in groups.values():
        taken = [correct[row["rollout_id"]] for row in group if row["taken"]]
        replaced = all((row["reason"] or "").startswith("its problem was sampled again") for row in group)
        assert len(taken) == (0 if replaced else 2)
        right = sum(bool(correct[row["rollout_id"]]) for row in group)
        assert replaced or sum(map(bool, taken)) == (2 if right == len(group) else min(1, right))
    domains = {row["problem_id"]: row["domain"] for row in program.rows("problems/*")}
    for row in batch:  # a shape sees no row that was left out before it
        unseen = (row["reason"] or "").startswith("its problem was sampled again")
        assert row["weight"] == (None if unseen else 2.0 if domains[row["problem_id"]] == "chain_sum/2" else 1.0)
    factors = {name: row["weight"] for name, row in rows.items() if row["advantage"]}
    weights = {row["rollout_id"]: row["weight"] for row in batch}
    assert factors == pytest.approx({name: weights[name] for name in factors})
    shape = next(e for e in program.events("shaped") if e["event"] == "stage_finished" and "left_out" in e["summary"])
    assert shape["summary"]["left_out"]["enough of its group"] == sum(
        r["reason"] == "enough of its group" for r in batch
    )


def test_another_shape_generates_and_judges_nothing_again(shaped: tuple[Program, dict[str, Any]]) -> None:
    program, told = shaped
    again = program.json("train", str(RECIPE), *settings(2), "--run", "again")
    started = [e for e in program.events("again") if e["event"] == "stage_started"]
    assert {(e["stage"], e["purpose"]) for e in started} == {
        ("shape", "train"), ("update", "train"), ("rollout", "eval"), ("score", "eval"), ("evaluate", "eval"),
    }  # fmt: skip
    assert len(learned(program, again["policy"])) > len(learned(program, told["policy"]))
    why = program.run("why", "again", "shape", "--round", "1")
    assert why[0] == 0, why
    program.json("rerun", "again", "shape")
    forced = [e for e in program.events("again") if e["event"] == "stage_started"][len(started) :]
    assert [e["stage"] for e in forced] == ["shape"]  # the batch came out as before, so that nothing follows
    table = json.loads(program.run("sql", "select count(*) as n from batch where not taken", "--json")[1])
    assert table["rows"][0][0] > 0
