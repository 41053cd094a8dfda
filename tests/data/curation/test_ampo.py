"""AMPO: given rows in the place of wrong ones, by hand."""

import numpy as np

from gradus.components.rows import Rows
from gradus.data.curation.shapes.teachers import ampo

OWN, GIVEN = None, "expert"


def rows(**columns: list[object]) -> Rows:
    found = {name: np.array(values, dtype=object if name == "origin" else None) for name, values in columns.items()}
    return Rows({**found, "reward": found["correct"] * 0.5})


def test_a_group_that_failed_learns_what_it_understands_best_in_place_of_its_last_wrong_rows() -> None:
    table = rows(
        group=[0, 0, 0, 0, 0, 0, 1, 1, 1],
        origin=[OWN, OWN, OWN, GIVEN, GIVEN, GIVEN, OWN, OWN, GIVEN],
        correct=[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0],
        **{"understood.score": [np.nan, np.nan, np.nan, 0.2, 0.9, 0.4, np.nan, np.nan, 0.99]},
    )
    found = ampo(table, replaced=2)
    assert found["taken"].tolist() == [True, False, False, False, True, True, True, True, False]
    assert found["reward"].tolist() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.5]
    assert np.nanmean(found["replaced_frac"]) == 2 / 5
    # One right row of two is too many by default, and few enough if two are allowed.
    assert ampo(table, solved=1)["taken"].tolist()[6:] == [True, False, True]


def test_no_more_rows_are_replaced_than_there_are_wrong_or_given_ones() -> None:
    table = rows(
        group=[0, 0, 1, 1, 1],
        origin=[OWN, GIVEN, OWN, OWN, OWN],
        correct=[0.0, 1.0, 0.0, 0.0, np.nan],
        **{"understood.score": [np.nan, np.nan, np.nan, np.nan, np.nan]},
    )
    assert ampo(table, replaced=9)["taken"].tolist() == [False, True, True, True, True]
