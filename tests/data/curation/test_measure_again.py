"""A round of many groups without variance measures other problems, from which nothing is learned."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.candidates import candidates
from gradus.data.curation.shapes.probed import without_measured
from gradus.data.curation.waves.probed import measure_again
from tests.data.curation.test_trackers import rounds

FLAT, VARIED, UNJUDGED = [1.0, 1.0], [1.0, 0.0], [None, None]
POOL = candidates(pa.table({"problem_id": list("abcdefgh"), "question": list("abcdefgh")}), None)


@pytest.mark.parametrize(
    ("groups", "limit", "asks"),
    [
        ({"a": FLAT, "b": VARIED}, 0.5, False),
        ({"a": FLAT, "b": VARIED}, 0.49, True),
        ({"a": FLAT, "b": FLAT, "c": VARIED}, 0.5, True),
        ({"a": UNJUDGED, "b": VARIED}, 0.4, True),
        ({"a": VARIED}, 0.0, False),
    ],
)
def test_other_problems_are_measured_above_the_limit(groups: dict[str, list[float]], limit: float, asks: bool) -> None:
    round_ = replace(rounds(groups), candidates=POOL)
    plan = measure_again(round_, np.random.default_rng(0), limit=limit, n=3)
    if not asks:
        assert plan is None
        return
    assert plan is not None
    assert plan.problem_id.to_pylist() == [name for name in "abcdefgh" if name not in groups]
    assert set(plan.columns["n"].to_pylist()) == {3}
    assert set(plan.columns["measured"].to_pylist()) == {True}


def test_as_many_as_are_asked_for_are_drawn_alike() -> None:
    round_ = replace(rounds({"a": FLAT}), candidates=POOL)
    drawn = [measure_again(round_, np.random.default_rng(seed), problems=2) for seed in range(400)]
    names = [name for plan in drawn if plan is not None for name in plan.problem_id.to_pylist()]
    assert len(names) == 800
    share = [names.count(name) / 400 for name in "bcdefgh"]
    # 2 of 7 problems; five standard errors of a share over 400 draws.
    assert share == pytest.approx([2 / 7] * 7, abs=5 * np.sqrt(2 / 7 * 5 / 7 / 400))


def test_what_was_measured_is_left_out_and_a_round_without_it_is_whole() -> None:
    table = pa.table({"rollout_id": list("xyz"), "plan.measured": [None, True, True]})
    assert list(without_measured(BatchRows(table))["taken"]) == [True, False, False]
    assert list(without_measured(BatchRows(table.drop_columns("plan.measured")))["taken"]) == [True] * 3
