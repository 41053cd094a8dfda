"""What is declared about data that no type checker sees: Arrow's functions, and rows of tables."""

import inspect

import pyarrow.compute
import pytest

from gradus.data import arrays
from gradus.data.lake.schema import PROBLEMS
from gradus.data.records import Problem

DECLARED = [name for name in vars(arrays._Compute) if not name.startswith("_")]


def test_a_problem_has_the_columns_of_its_table_in_their_order() -> None:
    assert list(Problem.__annotations__) == [column.name for column in PROBLEMS.columns]


@pytest.mark.parametrize("name", DECLARED)
def test_arrow_has_each_function_that_is_declared_with_its_arguments(name: str) -> None:
    theirs = inspect.signature(getattr(pyarrow.compute, name)).parameters
    ours = list(inspect.signature(getattr(arrays._Compute, name)).parameters.values())[1:]
    for parameter in ours:
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            assert parameter.name in theirs
        assert parameter.kind != parameter.VAR_POSITIONAL or any(p.kind == p.VAR_POSITIONAL for p in theirs.values())
