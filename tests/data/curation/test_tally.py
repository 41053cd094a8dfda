"""Scores counted by DuckDB against plain dictionaries; the same bits whatever the threads, the memory and the order."""

import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.curation.difficulty import Measurement, measure
from gradus.data.errors import GradusError
from gradus.data.lake.memory_limit import MemoryLimit
from gradus.data.lake.schema import ROLLOUTS
from gradus.data.lake.tally import Tally
from tests.data.curation.tallies import measured_of

SAID = [{"role": "user", "content": "?"}]
SCORED = st.fixed_dictionaries(
    {
        "problem_id": st.sampled_from(["b", "a", "", "it's a 'quoted' one", "ä"]),
        "reward": st.sampled_from([None, math.nan, 0.0, -0.0, 1.0, 0.1, 0.25, -3.0]) | st.floats(-1e3, 1e3),
        "correct": st.sampled_from([None, True, False]),
        "hint_level": st.sampled_from([None, 0, 0, 0, 1, 2]),
        "messages": st.sampled_from([None, None, None, SAID]),
        "origin": st.sampled_from([None, None, "own", "expert", "guided", "explained"]),
        "parent": st.sampled_from([None, None, None, "x"]),
        "recall": st.sampled_from([None, None, None, "y"]),
        "prompt_tokens": st.lists(st.integers(0, 9), min_size=1, max_size=3),
    }
)
SCORES = pa.schema(
    [("rollout_id", pa.string()), ("problem_id", pa.string()), ("reward", pa.float64()), ("correct", pa.bool_())]
)
SAMPLED = pa.schema(
    [(name, ROLLOUTS.type_of(name)) for name in ("rollout_id", "policy", "hint_level", "messages", "origin", "parent")]
    + [(name, ROLLOUTS.type_of(name)) for name in ("recall", "prompt_tokens")]
)


def is_bare(row: dict[str, Any]) -> bool:
    own = row["origin"] in (None, "own") and row["messages"] is None and not row["hint_level"]
    return own and row["parent"] is None and row["recall"] is None


def is_helped(row: dict[str, Any]) -> bool:
    shown = row["messages"] is not None or (row["hint_level"] or 0) > 0
    return shown and row["origin"] != "explained" and row["parent"] is None and row["recall"] is None


def by_problem(found: Measurement) -> dict[str, tuple[Any, ...]]:
    grades = found.grades
    columns = (found.n, found.k, grades.n, grades.mean, grades.variance)
    return {name: row for name, *row in zip(found.problem_ids.to_pylist(), *(c.tolist() for c in columns), strict=True)}


def expected(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int, list[float]]]:
    """Judged, right and rewards of each problem that has any, in the order of the problems' first rows."""
    found = {row["problem_id"]: [0, 0, list[float](), False] for row in rows}
    for row in filter(is_bare, rows):
        at = found[row["problem_id"]]
        at[0] += row["correct"] is not None
        at[1] += row["correct"] is True
        if row["reward"] is not None and not math.isnan(row["reward"]):
            at[2].append(row["reward"])
    return {name: (n, k, rewards) for name, (n, k, rewards, _) in found.items() if n or rewards}


@pytest.mark.slow
@given(st.lists(SCORED, min_size=1, max_size=30), st.integers(0, 30), st.integers(1, 4), st.booleans(), st.randoms())
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_plain_dictionaries(rows: Any, cut: int, group: int, alone: bool, random: Any) -> None:
    for at, row in enumerate(rows):
        row |= {"rollout_id": f"r{at}", "policy": "p" if row["origin"] in (None, "own") else row["origin"]}
        if row["recall"] is not None:
            row["policy"] = "an older one"
        if alone:
            row |= {"hint_level": 0, "messages": None, "origin": None, "parent": None, "recall": None}
    scores = [pa.Table.from_pylist(some, schema=SCORES) for some in (rows[:cut], rows[cut:])]
    shuffled = random.sample(rows, len(rows))
    rollouts = [pa.Table.from_pylist(some, schema=SAMPLED) for some in (shuffled[: cut // 2], shuffled[cut // 2 :])]
    found, unjudged = measured_of(scores, None if alone else rollouts, row_group=group)
    wanted, bare = expected(rows), [row for row in rows if is_bare(row)]
    assert list(by_problem(found)) == list(wanted)
    for name, (n, k, num, mean, variance) in by_problem(found).items():
        rewards = wanted[name][2]
        assert (n, k, num) == (*wanted[name][:2], len(rewards))
        assert mean == pytest.approx(
            statistics.fmean(rewards) if rewards else math.nan, rel=1e-12, abs=1e-9, nan_ok=True
        )
        wide = statistics.pvariance(rewards) if rewards else math.nan
        assert variance == pytest.approx(wide, rel=1e-9, abs=1e-9, nan_ok=True)
        assert len(set(rewards)) != 1 or (mean, variance) == (rewards[0], 0.0)
    assert (found.num_scores, found.num_hinted) == (len(rows), len(rows) - len(bare))
    assert found.num_rewarded == sum(row["reward"] is not None for row in rows)
    assert unjudged == [row["rollout_id"] for row in bare if row["correct"] is None]
    assert found.num_failed == sum(row["correct"] is None and row["reward"] is None for row in bare)
    assert found.help.metrics == pytest.approx(effect(rows))


def effect(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What help did for problems that were asked both ways, counted row by row."""
    ways: dict[str, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for row in rows:
        if row["correct"] is not None and (is_bare(row) or is_helped(row)):
            ways[row["problem_id"]][is_helped(row)].append((row["correct"], len(row["prompt_tokens"])))
    both = [(bare, helped) for bare, helped in ways.values() if bare and helped]
    if not both:
        return {}
    bare, helped = ([each for way in ways for each in way] for ways in zip(*both, strict=True))
    own = [statistics.fmean(length for _, length in each) for each, _ in both]
    return {
        "data/rescued_problems": sum(any(r for r, _ in h) and not any(r for r, _ in b) for b, h in both),
        "data/helped_accuracy": statistics.fmean(right for right, _ in helped),
        "data/unhelped_accuracy": statistics.fmean(right for right, _ in bare),
        "data/help_tokens": sum(length - plain for (_, h), plain in zip(both, own, strict=True) for _, length in h),
    }


def graded(num: int, num_problems: int) -> pa.Table:
    rng = np.random.default_rng(7)
    return pa.table(
        {
            "rollout_id": pa.array(np.arange(num)).cast(pa.string()),
            "problem_id": pa.array(rng.integers(0, num_problems, num)).cast(pa.string()),
            "reward": np.where(rng.random(num) < 0.1, 0.1, rng.normal(0, 1, num)),
            "correct": rng.random(num) < 0.5,
        }
    )


def test_order_threads_and_row_groups_change_no_bit() -> None:
    table = graded(20_000, 300)
    shuffled = table.take(np.random.default_rng(1).permutation(table.num_rows))
    wanted = by_problem(measured_of([table])[0])
    assert len(wanted) == 300
    assert by_problem(measured_of([table.slice(0, 9000), table.slice(9000)], threads=4, row_group=997)[0]) == wanted
    assert by_problem(measured_of([shuffled], threads=2, row_group=501)[0]) == wanted


@pytest.mark.slow
def test_what_exceeds_the_memory_lies_on_the_disk_and_changes_no_bit(tmp_path: Path) -> None:
    rows, folder = tmp_path / "rows.parquet", tmp_path / "here"
    folder.mkdir()
    pq.write_table(graded(300_000, 30_000), rows)

    def found(limit_bytes: int, *, disk: bool = True) -> dict[str, tuple[Any, ...]]:
        with MemoryLimit(limit_bytes, folder).database() as database:
            if not disk:
                database.execute("set max_temp_directory_size = '0KB'")
            return by_problem(measure(Tally(database, [rows])))

    with pytest.raises(GradusError, match=r"more than 0\.04 GB of memory.*raise GRADUS_MEMORY_GB"):
        found(40_000_000, disk=False)
    assert not list(folder.iterdir())  # after a failure, too
    assert found(40_000_000) == found(1_000_000_000)
    assert not list(folder.iterdir())


def test_what_a_killed_process_left_on_the_disk_is_removed(tmp_path: Path) -> None:
    left, other = tmp_path / ".spill-left", tmp_path / ".spill-other"
    for folder in (left, other):
        folder.mkdir()
        (folder / "duckdb_temp_storage.tmp").touch()
    (left / ".lock").write_text(json.dumps({"pid": 1}))
    with MemoryLimit(None, tmp_path).database() as database:
        assert database.sql("select 1").fetchall() == [(1,)]
        assert not left.exists()
        with MemoryLimit(None, tmp_path).database():  # the folder of a living process stays
            assert len(list(tmp_path.glob(".spill-*"))) == 3
    assert list(tmp_path.iterdir()) == [other]  # one whose owner does not say yet that it has it


def test_names_of_files_are_names_and_no_patterns(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]*'; drop"
    for each in (folder, tmp_path / "a1x'; drop"):
        each.mkdir()
    table = graded(10, 2)
    pq.write_table(table, folder / "part.parquet")
    pq.write_table(table, tmp_path / "a1x'; drop" / "part.parquet")
    with duckdb.connect() as database:
        assert measure(Tally(database, [folder / "part.parquet"])).num_scores == 10


def test_scores_without_a_row_measure_nothing() -> None:
    found, unjudged = measured_of([SCORES.empty_table()], [SAMPLED.empty_table()])
    assert (len(found.n), found.num_scores, found.policy, unjudged, found.help.metrics) == (0, 0, None, [], {})
