"""Lists of a run in pages."""

from collections.abc import Iterator
from typing import Any

import pytest

from gradus.tasks.config.settings import Home
from gradus.tasks.inspect import browsing
from gradus.tasks.inspect.browsing import VIEWS, Listing, groups_of
from gradus.tasks.inspect.run_rows import open_run
from tests.tasks.made_run import RUN, MadeRun

Rows = Any  # RunRows, as an annotation, outlives DuckDB, which then complains at the end of the process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    made = Home(tmp_path_factory.mktemp("home"))
    MadeRun(made).whole()
    return made


@pytest.fixture
def rows(home: Home) -> Iterator[Rows]:
    with open_run(home, RUN, pytest.fail) as opened:
        yield opened


@pytest.mark.parametrize("view", list(VIEWS))
def test_pages_are_the_list_in_every_order(rows: Rows, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    for order in VIEWS[view].orders:
        listing = Listing(rows, view, order=order)
        whole = listing.page()
        assert len(whole) == listing.count() == {"rounds": 5, "problems": 5, "groups": 12}[view]
        with monkeypatch.context() as patch:
            patch.setattr(browsing, "PAGE_ROWS", 2)
            pages = [listing.page(offset) for offset in range(0, len(whole), 2)]
        assert [line for page in pages for line in page] == whole


def test_a_scope_restricts_a_list(rows: Rows) -> None:
    assert [cells for _, cells in Listing(rows, "groups", {"round": 2, "purpose": "train"}).page()] == [
        ("2", "train", "a", "2", "100 %", "1", "0", "0", "21.5"),
        ("2", "train", "b", "2", "50 %", "0.5", "0.5", "0", "21.5"),
        ("2", "train", "c", "2", "0 %", "0", "0", "0", "21.5"),
    ]
    assert Listing(rows, "groups", {"problem_id": "b"}).count() == 3
    assert Listing(rows, "problems", condition="(reward = 1)").count() == 4


def test_the_groups_of_a_problem_come_by_round(rows: Rows) -> None:
    assert [(key.round, key.purpose) for key in groups_of(rows, "b")] == [(1, "hint2"), (1, "train"), (2, "train")]
