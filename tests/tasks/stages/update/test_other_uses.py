"""Rows of another use in an update by hand: left out, whoever sampled them and whether anything scored them."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.tasks.stages.update.conftest import ROW_TYPES


def test_an_update_leaves_out_rows_of_another_use(house: Any) -> None:
    own, judge = house.rows(), house.rows(house.other, level=1)
    for row in judge:
        row |= {"completion_tokens": None, "prompt_tokens": None, "logprobs": None}
    table = pa.Table.from_pylist([*own, *judge], schema=ROW_TYPES)
    uses = pa.array([None] * len(own) + ["judge"] * len(judge), pa.string())
    rollouts = house.store.put("rollouts", table.append_column("use", uses))
    inputs = {"rollouts": [rollouts], "scores": [house.score(own, house.rewards)], "policy": [house.policy]}
    made, _ = house.run(house.job(inputs))
    plain, _ = house.run(house.job(house.inputs(rows=own)))
    learned = [pq.read_table(folder / "rows.parquet").column("rollout_id").to_pylist() for folder in (made, plain)]
    assert sorted(learned[0]) == sorted(learned[1]) == sorted(row["rollout_id"] for row in own)
    assert (made / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
