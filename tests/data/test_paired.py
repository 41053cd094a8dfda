"""Bands and wins by hand."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from gradus.data.paired import BANDS, difficulty_band, sole_winners


def test_bands_and_wins_of_hand_made_rates() -> None:
    before = np.array([0.0, 0.125, 0.5, 0.875, 1.0])
    named = [BANDS[index] for index in difficulty_band(before)]
    assert named == ["never solved", "less than half", "half or more", "half or more", "always solved"]
    rate = np.array([[0.5, 0.2, 1.0, 0.3, 0.1 + 0.2], [0.5, 0.1, 0.0, 0.4, 0.3], [0.0, 0.1, 1.0, 0.4, 0.3]])
    assert sole_winners(rate).tolist() == [
        [False, True, False, False, False],
        [False, False, False, False, False],
        [False, False, False, False, False],
    ]


@given(
    hn.arrays(np.float64, hn.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=st.sampled_from([0, 0.5, 1]))
)
@settings(max_examples=60)
def test_a_problem_has_a_winner_exactly_if_the_best_rate_is_reached_once(rate: np.ndarray) -> None:
    won = sole_winners(rate).sum(axis=0)
    assert won.tolist() == [int(Counter(column)[max(column)] == 1) for column in rate.T.tolist()]
