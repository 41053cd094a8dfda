"""What rounds hand on, through the real program: trackers, and rollouts that are continued or come back.

Killed in the middle of both, counted a second way from Parquet, asked again and changed.
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import RECIPE, Program

OWN = '''
import numpy as np
from gradus.components import component
from gradus.data.curation.results import Draw


@component("tracker", columns=("seen", "right"), needs=("problem_id", "correct"))
def visits(before, round):
    """Count the rollouts of each problem and the correct ones."""
    rows = round.rows
    problem, number, count = np.unique(rows["problem_id"].astype(str), return_inverse=True, return_counts=True)
    right = np.bincount(number, np.nan_to_num(rows["correct"]))
    seen, known = before.at("seen", problem, default=0), before.at("right", problem, default=0)
    return {"problem_id": problem, "seen": seen + count, "right": known + right}


@component("sampler", needs=("visits.seen", "problem_id"))
def rarely(candidates, num, rng):
    """Take the problems that were sampled least."""
    order = np.lexsort((candidates["problem_id"].astype(str), np.nan_to_num(candidates["visits.seen"])))[:num]
    return Draw(order, np.ones(len(order)), np.zeros(len(order), dtype=bool), in_order=True)
'''
WAVES = 'waves=[{name="rethink", frac=0.2, phrase="0"}, {name="replay", from_round=2, groups=3}]'
TRAIN = (
    *(str(RECIPE), "--set", WAVES, "--set", "update.max_age=1", "--set", "escalate=[]"),
    *("--set", "rounds=2", "--set", "curate.draw=8", "--set", "curate.sampler=own.py:rarely"),
    *("--set", "rollout.shard_rows=4"),
)
TRACKED = ("train", *TRAIN, "--set", 'trackers=["own.py:visits", "sec"]', "--run", "tracked")


def kept(program: Program, run: str = "tracked") -> dict[tuple[int, str], str]:
    """The last rows of each tracker of a run by round and name."""
    found = [e for e in program.events(run) if e["event"] in ("stage_started", "stage_reused")]
    return {(e["round"], e["purpose"]): e["output"] for e in found if e["stage"] == "tracker"}


def counted(program: Program, run: str, index: int) -> dict[str, tuple[int, int]]:
    """Rollouts and correct ones by problem, of the rounds up to one, by the scores of the run themselves."""
    events = program.events(run)
    seen, right = Counter[str](), Counter[str]()
    scores = {e["output"] for e in events if e["event"] == "stage_started" and e["stage"] == "score"
              and 1 <= e["round"] <= index and not e["purpose"].startswith("eval")}  # fmt: skip
    for row in (row for artifact in scores for row in program.rows(artifact)):
        seen[row["problem_id"]] += 1
        right[row["problem_id"]] += bool(row["correct"])
    return {problem: (seen[problem], right[problem]) for problem in seen}


def by_id(program: Program) -> dict[str, dict[str, Any]]:
    return {row["rollout_id"]: row for row in program.rows("rollouts/*")}


def started(new_program: Callable[..., Program]) -> Program:
    program = new_program()
    (program.home / "own.py").write_text(OWN)
    for name, num in (("train", 36), ("heldout", 4)):
        file = program.home / f"{name}.jsonl"
        file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:num]))
    return program


@pytest.fixture(scope="module")
def tracked(new_program: Callable[..., Program]) -> Program:
    """Two rounds, killed among the rethought rollouts of the first, then in its tracker, and run to the end."""
    program = started(new_program)
    # One shard of the evaluation, 9 of the profile, 8 of the round, then those of the wave.
    for fault, where in (("rollout:after_shard#19", "rethink1"), ("tracker:before_manifest#1", "visits")):
        code, _, _ = program.run(*TRACKED, GRADUS_FAULT=fault)
        assert code != 0
        last = [e for e in program.events("tracked") if e["event"] == "stage_started"][-1]
        assert last["purpose"] == where
    program.json(*TRACKED)
    return program


def test_killed_twice_it_ends_in_the_bytes_of_an_undisturbed_run(
    new_program: Callable[..., Program], tracked: Program
) -> None:
    undisturbed = started(new_program)
    undisturbed.json(*TRACKED)
    assert undisturbed.manifests().keys() == tracked.manifests().keys()
    assert kept(undisturbed) == kept(tracked)
    lakes = [program.home / "lake" for program in (undisturbed, tracked)]
    files = [sorted(str(path.relative_to(lake)) for path in lake.glob("*/*/part-*.parquet")) for lake in lakes]
    assert files[0] == files[1]
    assert all((lakes[0] / name).read_bytes() == (lakes[1] / name).read_bytes() for name in files[0])


def test_the_rows_by_the_files_themselves(tracked: Program) -> None:
    rows = by_id(tracked)
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
    files = (tracked.home / "lake" / "checkpoints").glob("*/rows.parquet")
    learned = {name for file in files for name in pq.read_table(file).column("rollout_id").to_pylist()}
    assert {row["rollout_id"] for row in (*longer, *again)} <= learned
    assert not {row["parent"] for row in longer} & learned
    updates = [e["summary"] for e in tracked.events() if e["event"] == "stage_finished" and "updates" in e["summary"]]
    replaced = [len({row["parent"] for row in longer if row["round"] == index}) for index in (1, 2)]
    assert [found["replaced_parents"] for found in updates] == replaced


def test_what_it_keeps_is_what_the_scores_say_and_the_next_plan_follows_from_it(tracked: Program) -> None:
    for index in (1, 2):
        rows: list[dict[str, Any]] = tracked.rows(kept(tracked)[index, "visits"])
        found = {row["problem_id"]: (row["visits.seen"], row["visits.right"]) for row in rows}
        assert found == counted(tracked, "tracked", index)
    seen = set(counted(tracked, "tracked", 1))
    plans = [e["output"] for e in tracked.events("tracked") if e["event"] == "stage_started"
             and (e["stage"], e["round"], e["purpose"]) == ("curate", 2, "train")]  # fmt: skip
    second = [row["problem_id"] for row in tracked.rows(plans[0])]
    unseen = sorted({row["problem_id"] for row in tracked.rows(tracked_problems(tracked))} - seen)
    assert second == unseen[:8]
    gains = {row["problem.domain"]: row["sec.gain"] for row in tracked.rows(kept(tracked)[2, "sec"])}
    assert all(gain >= 0 for gain in gains.values())
    assert gains
    table = json.loads(
        tracked.run("sql", 'select sum("visits.seen") as n from trackers', "--run", "tracked", "--json")[1]
    )
    assert table


def tracked_problems(program: Program) -> str:
    """The problems that the run is trained on."""
    return next(e["output"] for e in program.events("tracked") if e["event"] == "stage_started"
                and (e["stage"], e["purpose"]) == ("ingest", "train"))  # fmt: skip


def test_rerun_by_name_and_another_tracker_compute_nothing_that_does_not_read_them(tracked: Program) -> None:
    before = kept(tracked)
    tracked.json("rerun", "tracked", "visits", "--round", "1")
    again = [e for e in tracked.events("tracked") if e["event"] == "run_started" or e["event"] == "stage_started"]
    last = max(i for i, e in enumerate(again) if e["event"] == "run_started")
    assert [(e["stage"], e["round"]) for e in again[last + 1 :]] == [("tracker", 1)]
    assert kept(tracked) == before
    more = ("--set", 'trackers=["own.py:visits", {name="sec", rate=0.25}, "beta_posterior"]')
    calls = tracked.json("train", *TRAIN, *more, "--dry-run")["calls"]
    computed = {(call["stage"], call["purpose"]) for call in calls if call["what"] == "computed"}
    assert computed == {("tracker", "sec"), ("tracker", "beta_posterior")}
