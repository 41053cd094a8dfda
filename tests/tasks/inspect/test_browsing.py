"""Lists of a run in pages."""

from typing import Any

import pytest

from gradus.tasks.inspect import groups as browsing
from gradus.tasks.inspect.groups import VIEWS, Listing, groups_of


@pytest.mark.parametrize("view", list(VIEWS))
def test_pages_are_the_list_in_every_order(rows: Any, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    for order in VIEWS[view].orders:
        listing = Listing(rows, view, order=order)
        whole = listing.page()
        assert len(whole) == listing.count() == {"rounds": 5, "problems": 5, "groups": 12}[view]
        with monkeypatch.context() as patch:
            patch.setattr(browsing, "PAGE_ROWS", 2)
            pages = [listing.page(offset) for offset in range(0, len(whole), 2)]
        assert [line for page in pages for line in page] == whole


def test_a_scope_restricts_a_list(rows: Any) -> None:
    assert [cells for _, cells in Listing(rows, "groups", {"round": 2, "purpose": "train"}).page()] == [
        ("2", "train", "a", "2", "100 %", "1", "0", "0", "21.5"),
        ("2", "train", "b", "2", "50 %", "0.5", "0.5", "0", "21.5"),
        ("2", "train", "c", "2", "0 %", "0", "0", "0", "21.5"),
    ]
    assert Listing(rows, "groups", {"problem_id": "b"}).count() == 3
    assert Listing(rows, "problems", condition="(reward = 1)").count() == 4


def test_the_groups_of_a_problem_come_by_round(rows: Any) -> None:
    assert [(key.round, key.purpose) for key in groups_of(rows, "b")] == [(1, "hint2"), (1, "train"), (2, "train")]
