"""An update whose advantage is what a shape gave each token."""

from pathlib import Path

import pytest

from gradus.data.errors import BadInputError
from tests.tasks.stages.update.conftest import House

MINE = '''
import numpy as np
from gradus.components import component

@component("shape", needs=("reward", "group", "length"))
def spread(rows, *, more: int = 0):
    """Give every token of a row its reward over the mean of its group."""
    over = rows["reward"] - rows.by("group").mean(rows["reward"])
    return {"credit": [np.full(length + more, each) for each, length in zip(over, rows["length"].astype(int))]}
'''


def test_the_same_credit_for_every_token_is_the_advantage_of_the_row_to_the_bit(house: House, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    rows, shape = house.rows(), f"{tmp_path / 'mine.py'}:spread"
    found, report = house.update(rows, house.rewards, advantage="credit", shapes=[shape], **house.steps)
    expected, _ = house.update(rows, house.rewards, advantage="dr_grpo", **house.steps)
    assert house.weights(found).keys() == house.weights(expected).keys()
    assert (found / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    assert len(report["steps"]) == 4  # of three groups one has no variance
    made = "rollout a@r1h0:0 has not one number of credit for each of its tokens"
    with pytest.raises(BadInputError, match=made) as error:
        house.update(rows, house.rewards, advantage="credit", shapes=[{"name": shape, "more": 1}])
    assert error.value.hint == "correct the shape that gives it"


def test_an_advantage_of_credit_that_no_shape_gave_is_refused(house: House) -> None:
    with pytest.raises(BadInputError, match=r"the objective reads the column credit, and no shape .* has made it"):
        house.update(house.rows(), house.rewards, advantage="credit")
