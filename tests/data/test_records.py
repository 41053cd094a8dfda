"""What is declared about data that no type checker sees: Arrow's functions, and rows of tables."""

import re

import pyarrow.compute

from gradus.data.lake.schema import PROBLEMS
from gradus.data.package import package_file
from gradus.data.records import Problem


def test_a_problem_has_the_columns_of_its_table_in_their_order() -> None:
    assert list(Problem.__annotations__) == [column.name for column in PROBLEMS.columns]


def test_arrow_has_each_function_that_is_called() -> None:
    files = [file for part in ("flows", "tasks", "models", "data") for file in package_file(part).rglob("*.py")]
    called = {name for file in files for name in re.findall(r"\bpc\.(\w+)\(", file.read_text(encoding="utf-8"))}
    assert "fill_null" in called
    assert [name for name in called if not hasattr(pyarrow.compute, name)] == []
