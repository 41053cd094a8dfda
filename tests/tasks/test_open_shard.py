"""Rows of a shard in the making: on disk every so many seconds, back in the next attempt, gone when it closes."""

from pathlib import Path
from typing import Any

from tasks.open_shard import OpenShard


def row(number: int) -> dict[str, Any]:
    return {"rollout_id": str(number), "problem_id": "p", "completion": f"c{number}", "completion_tokens": [number]}


def test_rows_reach_the_disk_after_the_interval_and_come_back(tmp_path: Path) -> None:
    now = 0.0
    opened = OpenShard(tmp_path, 3, every_s=10, clock=lambda: now)
    opened.add(row(1))
    assert OpenShard(tmp_path, 3, 10).rows() == []
    now = 10.0
    opened.add(row(2))
    opened.add(row(3))
    again = OpenShard(tmp_path, 3, 10)
    assert [(r["rollout_id"], r["completion_tokens"]) for r in again.rows()] == [("1", [1]), ("2", [2])]
    again.add(row(4))
    again.flush()
    assert [r["rollout_id"] for r in OpenShard(tmp_path, 3, 10).rows()] == ["1", "2", "4"]
    assert OpenShard(tmp_path, 4, 10).rows() == []
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_a_torn_or_flipped_file_counts_as_never_written(tmp_path: Path) -> None:
    opened = OpenShard(tmp_path, 0, every_s=0)
    for number in range(3):
        opened.add(row(number))
    first, second, _ = sorted(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-20])
    content = bytearray(second.read_bytes())
    content[content.index(b"c1")] ^= 1
    second.write_bytes(bytes(content))
    assert [r["rollout_id"] for r in OpenShard(tmp_path, 0, 0).rows()] == ["2"]


def test_an_engine_that_repeats_itself_keeps_nothing(tmp_path: Path) -> None:
    opened = OpenShard(None, 0, every_s=0)
    opened.add(row(1))
    opened.flush()
    opened.close()
    assert opened.rows() == []
    assert list(tmp_path.iterdir()) == []
