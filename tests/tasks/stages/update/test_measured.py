"""An objective that reads what a measure found of each token of the rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.data.curation.batch import first_batch, judged
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref
from tests.tasks.stages.update.conftest import House, Row

MINE = '''
from gradus.components import component

@component("advantage", per="token", needs=("reward", "forced.logp", "forced.mean"))
def surprised(rows):
    """Return the reward times how surprised a model was of the token; 1 where it was not asked."""
    return rows["reward"][rows.row] * (-rows["forced.logp"]).nan_to_num(1.0) + rows["forced.mean"][rows.row]
'''


def batch_of(house: House, rows: list[Row], logp: list[list[float]]) -> dict[str, list[Ref]]:
    scored = pa.table(
        {
            **{name: [row[name] for row in rows] for name in ("rollout_id", "problem_id", "group_id", "hint_level")},
            "origin": pa.nulls(len(rows), pa.string()),
            "reward": house.rewards,
            "correct": [value == 1 for value in house.rewards],
            "forced.logp": logp,
            "forced.mean": [0.5] * len(rows),
        }
    )
    batch = judged(first_batch(scored), ["forced.logp", "forced.mean"])
    return {**house.inputs(rows=rows), "batch": [house.store.put("batch", batch)]}


def test_a_list_with_a_number_of_each_token_is_a_column_of_tokens(house: House, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    rows, advantage = house.rows(), f"{tmp_path / 'mine.py'}:surprised"
    logp = [[-0.25 * (k + 1) for k, _ in enumerate(row["completion_tokens"])] for row in rows]
    logp[5] = []  # not measured
    made, _ = house.run(house.job(batch_of(house, rows, logp), advantage=advantage, **house.steps))
    used = {row["rollout_id"]: row["advantage"] for row in pq.read_table(made / "rows.parquet").to_pylist()}
    # Two tokens, of -0.25 and -0.5 nats; a reward of 0; one that nobody asked of; four of -0.25 to -1.
    expected = {"a@r1h0:0": 0.375 + 0.5, "a@r1h0:1": 0.5, "b@r1h0:1": 1.5, "c@r1h0:3": 0.625 + 0.5}
    assert [len(rows[place]["completion_tokens"]) for place in (0, 11)] == [2, 4]
    assert {name: used[name] for name in expected} == pytest.approx(expected)
    logp[2] = logp[2][1:]
    with pytest.raises(BadInputError, match=r"rollout a@r1h0:2 has not one number of forced.logp for each of its"):
        house.run(house.job(batch_of(house, rows, logp), advantage=advantage, **house.steps))
