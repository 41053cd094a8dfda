"""MMR1's variance-aware sampling by hand: how unlike rollouts are, and the draw by it."""

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import Rows
from gradus.data.curation.round import round_of
from gradus.data.curation.samplers.draws import mmr1_vas
from gradus.data.curation.tracked import Tracked
from gradus.data.curation.trackers.diversity import diversity


def test_the_dissimilarity_is_the_mean_over_pairs_of_a_problems_own_rollouts() -> None:
    # a: cosines of (1, 1), (1, 0) and (0, 1) over two words: 1/sqrt(2), 1/sqrt(2) and 0; b: equal, and a given text;
    # c: one rollout.
    rows = pa.table(
        {
            "problem_id": list("aaabbbc"),
            "completion": ["one two", "one", "two", "same", "Same!", "other", "x"],
            "origin": [None, "own", None, None, None, "expert", None],
            "group": [0, 0, 0, 1, 1, 1, 2],
        }
    )
    found = diversity(Tracked(pa.table({"problem_id": [], "dissimilarity": []}), keys=("problem_id",)), round_of(rows))
    assert found["problem_id"].tolist() == ["a", "b"]
    assert found["dissimilarity"].tolist() == [pytest.approx(1 - 2**0.5 / 3), pytest.approx(0.0)]


def test_a_share_is_drawn_by_the_score_and_the_rest_uniformly() -> None:
    # Scores 0.8 * 0.25 + 0.2 * 0.5 = 0.3, 0.2 * 0.5 = 0.1, none, none.
    pool = Rows(
        {
            "variance": np.array([0.25, 0.0, np.nan, 0.0]),
            "diversity.dissimilarity": np.array([0.5, 0.5, np.nan, 0.0]),
        }
    )
    rng = np.random.default_rng(0)
    draws = [mmr1_vas(pool, 2, rng) for _ in range(2000)]
    first = np.bincount([draw.index[0] for draw in draws], minlength=4) / 2000
    assert first == pytest.approx([0.75, 0.25, 0.0, 0.0], abs=0.04)
    # The second is one of the three others: 2, 3 by 1/3 each; 0 by 1/3 where 1 came first.
    second = np.bincount([draw.index[1] for draw in draws], minlength=4) / 2000
    assert second == pytest.approx([0.25 / 3, 0.25, 1 / 3, 1 / 3], abs=0.04)
    assert {tuple(draw.explored.tolist()) for draw in draws} == {(False, True)}
    assert {draw.weight[1] for draw in draws} == {1.0}
    assert {round(draw.weight[0], 6) for draw in draws} == {0.3, 0.1}


def test_problems_without_a_score_fill_up_the_draw() -> None:
    unknown = Rows({"variance": np.full(5, np.nan), "diversity.dissimilarity": np.full(5, np.nan)})
    draw = mmr1_vas(unknown, 4, np.random.default_rng(0))
    assert (len(set(draw.index.tolist())), draw.explored.tolist()) == (4, [True] * 4)
    assert sorted(mmr1_vas(unknown, 9, np.random.default_rng(0)).index.tolist()) == [0, 1, 2, 3, 4]
