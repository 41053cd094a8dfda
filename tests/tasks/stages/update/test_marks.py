"""Marks of a reward and of a shape in the batch and in an advantage, over the tokens of completions."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gradus.components.rows import ColumnError, Marks
from gradus.data.curation.batch import BatchRows, Shape, ShapeError, first_batch, judged, shaped
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import SCORES
from gradus.models.objectives.rows import Rows
from tests.tasks.stages.update.conftest import House

MINE = '''
import torch
from gradus.components import component

@component("shape", needs=("reward", "length", "marks.judged"))
def first_token(rows, *, more: int = 0):
    """Mark the first token of rows without a reward."""
    assert rows.marks("judged").label.tolist() == ["why"]
    return {"marks": [[{"name": "bad", "start": 0, "end": 1 + more}] if r == 0 else None for r in rows["reward"]]}

@component("advantage", per="token", needs=("reward", "group", "marks.bad", "marks.judged"))
def beyond(rows):
    """Subtract 1 where a shape or a reward marked a token."""
    bad, judged = rows.marks("bad"), rows.marks("judged")
    better = rows["reward"] - rows.by("group").mean(rows["reward"])
    return better[rows.row] - rows.inside(bad).double() - 2 * rows.inside(judged).double()
'''
JUDGED = {"name": "judged", "start": 1, "end": 2, "value": None, "label": "why"}


def batch(marks: list[object] | None = None) -> pa.Table:
    table = pa.table(
        {
            "rollout_id": ["x", "y", "z"], "problem_id": ["a"] * 3, "group_id": ["g"] * 3, "hint_level": [0] * 3,
            "origin": pa.nulls(3, pa.string()), "reward": [1.0, 0.0, 0.0], "correct": [True, False, False],
        }
    )  # fmt: skip
    return table if marks is None else table.append_column("marks", pa.array(marks, SCORES.type_of("marks")))


def test_marks_of_a_shape_stand_beside_those_of_the_reward() -> None:
    def more(rows: BatchRows) -> dict[str, object]:
        assert rows.marks("judged").row.tolist() == [1]
        return {"marks": [None, [{"name": "bad", "start": np.int64(0), "end": 2, "value": 0.5}], ()]}

    found, _ = shaped(first_batch(batch([None, [JUDGED], None])), [Shape("more", more, ("marks.judged",))])
    bad = {"name": "bad", "start": 0, "end": 2, "value": 0.5, "label": None}
    assert judged(found, ["marks.bad"]).column("marks").to_pylist() == [[], [JUDGED, bad], []]
    assert "marks" not in judged(first_batch(batch()), ["marks.bad"]).column_names


@pytest.mark.parametrize(
    ("marks", "said"),
    [
        ([None], "its 'marks' is not a list of marks, or None, for each of 3 rows"),
        ([None, None, [{"name": "bad", "start": 3, "end": 2}]], "it returns a mark 'bad' from 3 to 2 of a completion"),
        ([None, None, [{"name": "bad", "start": 0, "stop": 2}]], "it returns the key 'stop' in a mark"),
    ],
)
def test_marks_that_no_shape_can_return(marks: list[object], said: str) -> None:
    def odd(_rows: BatchRows) -> dict[str, object]:
        return {"marks": marks}

    with pytest.raises(ShapeError) as error:
        shaped(first_batch(batch()), [Shape("odd", odd)])
    assert str(error.value).startswith(said)


def test_marks_are_read_by_what_declares_them() -> None:
    rows = BatchRows(batch([None, [JUDGED], None]))
    with pytest.raises(ColumnError, match=r"mine reads 'marks.judged' without declaring it: add it to its `needs`"):
        rows.reading(["reward"], "mine").marks("judged")
    assert len(rows.reading(["marks.other"], "mine").marks("other").row) == 0


def test_rows_of_an_update_keep_the_marks_of_their_tokens() -> None:
    row, start, end = torch.tensor([0, 0, 2]), torch.tensor([0, 1, 1]), torch.tensor([2, 3, 1])
    marks = Marks(row, start, end, torch.tensor([1.0, 2.0, 3.0]), np.array(["a", "b", "c"], object))
    rows = Rows({}, {"old.logp": torch.zeros(7)}, torch.tensor([4, 1, 2]), marks={"marks.m": marks})
    assert rows.inside(rows.marks("m")).tolist() == [True, True, True, False, False, False, False]
    some = rows.select(torch.tensor([2, 1, 0, 0])).reading(["marks.m"], "mine").marks("m")
    assert (some.row.tolist(), some.label.tolist()) == ([0, 2, 2, 3, 3], ["c", "a", "b", "a", "b"])
    assert some.value.tolist() == [3, 1, 2, 1, 2]
    assert rows.adding({"more": torch.zeros(3)}).marks("m").row.tolist() == [0, 0, 2]


def test_an_update_reads_marks_of_rewards_and_shapes(house: House, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    rows, mine = house.rows(), str(tmp_path / "mine.py")
    table = house.store.read(house.score(rows, house.rewards))
    names = table.column("rollout_id").to_pylist()
    marked = [[JUDGED] if name == "a@r1h0:1" else None for name in names]
    marks = pa.array(marked, SCORES.type_of("marks"))
    inputs = {**house.inputs(rows=rows), "scores": [house.store.put("scores", table.append_column("marks", marks))]}
    config: dict[str, Any] = {"advantage": f"{mine}:beyond", "aggregation": "token_mean", **house.steps}
    made, _ = house.run(house.job(inputs, **config, shapes=[f"{mine}:first_token"]))
    used = {row["rollout_id"]: row["advantage"] for row in pq.read_table(made / "rows.parquet").to_pylist()}
    # One of four is right, which is worth 1 - 1/4. The shape marks a token of a1 and of a2, the reward one of a1.
    assert used["a@r1h0:0"] == 0.75
    assert used["a@r1h0:1"] == pytest.approx((3 * -0.25 - 1 - 2) / 3)
    assert used["a@r1h0:2"] == pytest.approx((4 * -0.25 - 1) / 4)
    wrong = [{"name": f"{mine}:first_token", "more": 40}]
    with pytest.raises(BadInputError, match="rollout a@r1h0:1 has a mark that is not within its tokens") as error:
        house.run(house.job(inputs, **config, shapes=wrong))
    assert error.value.hint == "correct the shape or reward that marks it"
