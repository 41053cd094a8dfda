"""A run written by hand that tests of this folder only read, and its rows."""

from collections.abc import Iterator
from typing import Any

import pytest

from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.report.writing import TABLES
from gradus.tasks.inspect.sql_views import open_run
from tests.tasks.made_run import RUN, MadeRun


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A run with every section of a page."""
    home = Home(tmp_path_factory.mktemp("made"))
    MadeRun(home).whole()
    return home


@pytest.fixture
def rows(made: Home) -> Iterator[Any]:  # RunRows, as an annotation, outlives DuckDB, which then complains at the end
    with open_run(made, RUN, pytest.fail, TABLES) as opened:
        yield opened
