"""Shares of domains by hand: RuleReasoner's shortfall, MoDoMoDo's mixture."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import Rows
from gradus.data.curation.round import round_of
from gradus.data.curation.samplers.mixtures import best_mixture, modomodo
from gradus.data.curation.samplers.mixtures import dads as draw
from gradus.data.curation.tracked import Tracked
from gradus.data.curation.trackers.domains import dads
from gradus.data.errors import UsageError


def texts(*values: str | None) -> Any:
    return np.array(values, dtype=np.object_)


def test_a_domains_reward_moves_towards_the_mean_of_the_round() -> None:
    # sums: 0.5 -> 0.75 * 0.5 + 0.25 * (1 + 0.5) / 2; signs is new; words is not sampled, what has no domain no arm.
    rows = pa.table(
        {
            "problem_id": list("abcdef"),
            "group": [0, 1, 2, 3, 4, 5],
            "problem.domain": ["sums", "sums", "signs", None, "signs", "sums"],
            "reward": [1.0, 0.5, 0.25, 1.0, None, 1.0],
            "origin": [None, None, "own", None, None, "expert"],
        }
    )
    before = Tracked(pa.table({"problem.domain": ["sums", "words"], "reward": [0.5, 0.9]}), keys=("problem.domain",))
    found = dads(before, round_of(rows), keep=0.75)
    assert found["problem.domain"].tolist() == ["signs", "sums"]
    assert found["reward"].tolist() == [0.25, 0.75 * 0.5 + 0.25 * 0.75]


def pool(*domains: str | None, **columns: Any) -> Rows:
    return Rows({"domain": texts(*domains), **columns})


def test_domains_are_drawn_by_the_softmax_of_what_they_lack() -> None:
    # Lacks 0.25, 0 (above the target) and all 0.75: weights e^0.5, 1 and e^1.5 at temperature 1/2.
    rows = pool("a", "b", "b", "c", **{"dads.reward": np.array([0.5, 0.9, 0.9, np.nan])})
    share = np.exp([0.5, 0.0, 1.5]) / np.exp([0.5, 0.0, 1.5]).sum()
    rng = np.random.default_rng(0)
    draws = [draw(rows, 1, rng, target=0.75, temperature=0.5) for _ in range(2000)]
    counts = np.bincount([each.index[0] for each in draws], minlength=4) / 2000
    assert counts == pytest.approx([share[0], share[1] / 2, share[1] / 2, share[2]], abs=0.04)
    whole = draw(rows, 9, rng, target=0.75, temperature=0.5)
    assert sorted(whole.index.tolist()) == [0, 1, 2, 3]
    assert dict(zip(whole.index.tolist(), whole.weight.tolist(), strict=True))[2] == pytest.approx(share[1])
    assert whole.index[whole.explored].tolist() == [3]


def test_the_best_mixture_is_the_top_of_the_quadratic_through_the_pilots() -> None:
    # 1 - (w - 0.3)^2 at w = 0, 0.5, 1, written with shares that need not sum to 1.
    assert best_mixture([(0, 3), (2, 2), (1, 0)], [0.91, 0.96, 0.51]) == pytest.approx([0.3, 0.7], abs=1e-4)
    # A straight line has its best at an end; three domains with the top at (0.5, 0.3, 0.2).
    assert best_mixture([(0, 1), (0.5, 0.5), (1, 0)], [0.0, 0.5, 1.0]) == pytest.approx([1.0, 0.0], abs=1e-6)
    top = np.array([0.5, 0.3, 0.2])
    pilots = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.5, 0.5, 0), (0, 0.5, 0.5), (0.5, 0, 0.5), (0.2, 0.2, 0.6)]
    outcomes = [2 - float(((np.array(each) - top) ** 2).sum()) for each in pilots]
    assert best_mixture(pilots, outcomes) == pytest.approx(top, abs=1e-4)


@pytest.mark.slow
def test_a_mixture_is_drawn_and_without_pilots_all_domains_alike() -> None:
    rows, rng = pool("a", "b", "c", None, "b"), np.random.default_rng(0)
    mixed: dict[str, Any] = {
        "domains": ("b", "a"),
        "pilots": ((0.0, 1.0), (0.5, 0.5), (1.0, 0.0)),
        "outcomes": (0.91, 0.96, 0.51),
    }
    first = [int(modomodo(rows, 1, rng, **mixed).index[0]) for _ in range(1000)]
    assert np.bincount(first, minlength=5) / 1000 == pytest.approx([0.7, 0.15, 0, 0, 0.15], abs=0.05)
    assert sorted(modomodo(rows, 5, rng, **mixed).index.tolist()) == [0, 1, 4]
    alike = [int(modomodo(rows, 1, rng).index[0]) for _ in range(1000)]
    assert np.bincount(alike) / 1000 == pytest.approx([0.25, 0.125, 0.25, 0.25, 0.125], abs=0.05)
    with pytest.raises(UsageError, match="1 outcomes of 1 pilots of 1 domains"):
        modomodo(rows, 1, rng, domains=("a",), pilots=((0.5, 0.5),), outcomes=(0.5,))
