"""The rows of an export are those that meet a condition."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gradus.data.errors import UsageError
from gradus.data.lake.store import Store
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.exchange.rollouts import uses_of, write_rollouts
from gradus.tasks.runs.lineage import Use
from tests.tasks.made_run import RUN

RIGHT = ["a0 of train 1", "b0 of hint2 1", "a0 of train 2", "a1 of train 2", "b0 of train 2"]


@pytest.fixture
def uses(made: Home) -> tuple[Store, list[Use]]:
    return Store(made.lake), uses_of(Store(made.lake), made.runs, RUN)


@pytest.mark.parametrize("name", ["verl", "trl", "trinity", "openai", "parquet"])
def test_every_format_has_the_rows_of_the_condition_alone(
    uses: tuple[Store, list[Use]], tmp_path: Path, name: str
) -> None:
    written = write_rollouts(*uses, name, tmp_path, where="correct")
    assert written["rows"] == len(RIGHT)
    if name == "openai":
        lines = (tmp_path / "chat.jsonl").read_text().splitlines()
        assert [json.loads(line)["messages"][1]["content"] for line in lines] == RIGHT
    if name == "parquet":
        table = pq.read_table(tmp_path / "rollouts.parquet")
        assert table.column("completion").to_pylist() == RIGHT
        assert "place" not in table.column_names


def test_a_condition_may_name_any_column_and_one_that_does_not_run_writes_nothing(
    uses: tuple[Store, list[Use]], tmp_path: Path
) -> None:
    both = write_rollouts(*uses, "verl", tmp_path / "both", where="reward < 0.5 and hint_level > 0 -- failed")
    assert both["rows"] == 3
    for where, said in (
        ("corect", r"--where corect: .*corect.*; the columns are rollout_id"),
        ("reward > 5", "no rollout meets --where reward > 5"),
        ("correct; drop table rollouts", "--where correct; drop table rollouts: "),
        ("true) union select 1 from read_text('/etc/passwd'", "--where true"),
    ):
        with pytest.raises(UsageError, match=said):
            write_rollouts(*uses, "verl", tmp_path / "none", where=where)
    assert not (tmp_path / "none").exists()
