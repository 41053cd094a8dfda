"""Rollouts that are continued or come back, through the real program: killed in between, counted from Parquet."""

from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import RECIPE, Program

REPLAY = '{name="replay", from_round=2, groups=3}'
WAVES = (
    *("--set", f'waves=[{{name="rethink", frac=0.2, phrase="0"}}, {REPLAY}]'),
    *("--set", "rounds=2", "--set", "update.max_age=1", "--set", "escalate=[]", "--set", "curate.draw=8"),
    *("--set", "rollout.shard_rows=4", "--set", "problems=few.jsonl", "--set", "evaluate.problems=judged.jsonl"),
)


def small(program: Program) -> Program:
    """The program with twelve problems to train on and four to evaluate."""
    for name, whole, num in (("few", "train", 12), ("judged", "heldout", 4)):
        lines = (program.home / f"{whole}.jsonl").read_text().splitlines()[:num]
        (program.home / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return program


def by_id(program: Program) -> dict[str, dict[str, Any]]:
    return {row["rollout_id"]: row for row in program.rows("rollouts/*")}


@pytest.fixture(scope="module")
def killed(new_program: Callable[..., Program]) -> Program:
    """Two rounds with both waves, killed in the middle of the rethought rollouts of the first, run to their end."""
    program = small(new_program())
    command = ("train", str(RECIPE), *WAVES, "--run", "continued")
    code, _, _ = program.run(*command, GRADUS_FAULT="rollout:after_shard#13")
    assert code != 0
    started = [event for event in program.events("continued") if event["event"] == "stage_started"]
    assert (started[-1]["stage"], started[-1]["purpose"]) == ("rollout", "rethink1")
    program.json(*command)
    return program


def test_killed_among_continued_rollouts_it_ends_in_the_same_bytes(
    new_program: Callable[..., Program], killed: Program
) -> None:
    undisturbed = small(new_program())
    undisturbed.json("train", str(RECIPE), *WAVES, "--run", "continued")
    lake = undisturbed.home / "lake"
    files = sorted(str(path.relative_to(lake)) for path in lake.glob("*/*/part-*.parquet"))
    assert files == sorted(
        str(path.relative_to(killed.home / "lake")) for path in (killed.home / "lake").glob("*/*/part-*.parquet")
    )
    assert all((lake / name).read_bytes() == (killed.home / "lake" / name).read_bytes() for name in files)


def test_the_rows_by_the_files_themselves(killed: Program) -> None:
    rows = by_id(killed)
    longer = [row for row in rows.values() if row.get("parent")]
    again = [row for row in rows.values() if row.get("recall")]
    assert {row["round"] for row in longer} == {1, 2}
    assert {row["round"] for row in again} == {2}
    for row in longer:
        parent = rows[row["parent"]]
        cut = len(parent["completion_tokens"]) - 1
        assert row["completion_tokens"][:cut] == parent["completion_tokens"][:cut]
        assert row["logprobs"][:cut] == parent["logprobs"][:cut]
        assert (row["group_id"], row["prompt_tokens"]) == (parent["group_id"], parent["prompt_tokens"])
        assert parent["finish_reason"] == "stop"
    for row in again:
        stored = rows[row["recall"]]
        assert stored["round"] == 1
        assert (row["completion_tokens"], row["policy"]) == (stored["completion_tokens"], stored["policy"])
    assert len({row["group_id"] for row in again}) == len({rows[row["recall"]]["group_id"] for row in again})
    files = (killed.home / "lake" / "checkpoints").glob("*/rows.parquet")
    learned = {name for file in files for name in pq.read_table(file).column("rollout_id").to_pylist()}
    assert {row["rollout_id"] for row in (*longer, *again)} <= learned
    assert not {row["parent"] for row in longer} & learned
    updates = [e["summary"] for e in killed.events() if e["event"] == "stage_finished" and "updates" in e["summary"]]
    replaced = [len({row["parent"] for row in longer if row["round"] == index}) for index in (1, 2)]
    assert [found["replaced_parents"] for found in updates] == replaced
