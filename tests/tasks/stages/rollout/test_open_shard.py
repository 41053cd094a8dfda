"""Rows of a shard in the making: on disk every N seconds, back in the next attempt, gone when it closes."""

from pathlib import Path

import pyarrow as pa

from gradus.data.lake.schema import ROLLOUTS
from gradus.tasks.stages.rollout.resumed import OpenShard


def rows(*numbers: int) -> pa.Table:
    found = [
        {"rollout_id": str(n), "problem_id": "p", "completion": f"c{n}", "completion_tokens": [n]} for n in numbers
    ]
    return pa.Table.from_pylist(found, schema=ROLLOUTS.arrow)


def kept(folder: Path | None, index: int) -> list[tuple[str, list[int]]]:
    return [(r["rollout_id"], r["completion_tokens"]) for r in OpenShard(folder, index, 10).rows().to_pylist()]


def test_rows_are_due_after_the_interval_and_come_back(tmp_path: Path) -> None:
    now = 0.0
    opened = OpenShard(tmp_path, 3, every_s=10, clock=lambda: now)
    assert not opened.due
    now = 10.0
    assert opened.due
    opened.keep(rows(1, 2))
    assert not opened.due
    now = 19.9
    assert not opened.due
    again = OpenShard(tmp_path, 3, 10)
    assert kept(tmp_path, 3) == [("1", [1]), ("2", [2])]
    again.keep(rows(4))
    assert kept(tmp_path, 3) == [("1", [1]), ("2", [2]), ("4", [4])]
    assert kept(tmp_path, 4) == []
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_a_torn_or_flipped_file_counts_as_never_written(tmp_path: Path) -> None:
    opened = OpenShard(tmp_path, 0, every_s=0)
    for number in range(3):
        opened.keep(rows(number))
    first, second, _ = sorted(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-20])
    content = bytearray(second.read_bytes())
    content[content.index(b"c1")] ^= 1
    second.write_bytes(bytes(content))
    assert kept(tmp_path, 0) == [("2", [2])]


def test_an_engine_that_repeats_itself_keeps_nothing(tmp_path: Path) -> None:
    opened = OpenShard(None, 0, every_s=0)
    assert not opened.due
    opened.keep(rows(1))
    opened.close()
    assert kept(None, 0) == []
    assert list(tmp_path.iterdir()) == []
