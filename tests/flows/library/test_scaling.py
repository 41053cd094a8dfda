"""`run.scaling`: the points of a curve from a run's evaluations and tokens."""

import json
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import UsageError
from gradus.flows.library import results
from gradus.flows.library.results import Run
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.trainings import Sigmoid

CURVE = Sigmoid(0.3, 0.7, 1.5, 2500.0)
TOKENS = {1: 1000, 2: 1000, 3: 2000, 4: 2000, 5: 2000, 6: 4000}
"""Of each round; rounds 2 and 5 are not evaluated."""
EVALUATED = {0: 0.0, 1: 1000.0, 3: 4000.0, 4: 6000.0, 6: 12000.0}
"""Tokens sampled before each evaluation."""


def run(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, int]]) -> Run:
    """A run with these evaluations (suite, round), which lie on a curve."""
    points = [
        {"suite": suite, "round": at, "pass_at_1": float(CURVE.at(EVALUATED[at])) if suite == "heldout" else 0.5}
        for suite, at in rows
    ]
    spent = pa.table({"round": list(TOKENS), "tokens": list(TOKENS.values())})
    monkeypatch.setattr(Run, "evaluations", lambda _self: pa.Table.from_pylist(points))

    def asked(_home: Home, query: str, name: str | None) -> Any:
        assert "from samples" in query
        assert name == "mine"
        return spent

    monkeypatch.setattr(results, "_asked", asked)
    return Run("mine", Home.from_environment())


def test_a_curve_is_over_the_tokens_of_all_rounds_before_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(suite, at) for at in EVALUATED for suite in ("heldout", "other")]
    mine = run(monkeypatch, both)
    found = mine.scaling("heldout")
    assert (found.start, found.asymptote, found.midpoint) == pytest.approx((0.3, 0.7, 2500), rel=1e-3)
    assert float(found.at(24000.0)) == pytest.approx(float(CURVE.at(24000.0)), abs=1e-4)
    with pytest.raises(UsageError, match="run mine has the suites heldout, other"):
        mine.scaling()
    with pytest.raises(UsageError, match="has the suites heldout, other"):
        mine.scaling("held")


def test_a_curve_lists_its_points_beside_the_sigmoid(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = run(monkeypatch, [("heldout", at) for at in EVALUATED])
    monkeypatch.setattr(results, "run", lambda _name: mine)
    found = results.curve("min", "heldout")
    assert (found["run"], found["suite"]) == ("mine", "heldout")
    assert {each["round"]: each["tokens"] for each in found["points"]} == EVALUATED
    assert (found["start"], found["asymptote"], found["midpoint_tokens"]) == pytest.approx((0.3, 0.7, 2500), rel=1e-3)
    # 0.3 + 0.4 / (1 + 1000^-1.5 2500^1.5)
    assert found["points"][1]["fitted"] == pytest.approx(0.3 + 0.4 / (1 + 2.5**1.5), abs=1e-4)
    assert json.loads(json.dumps(found)) == found  # what --json prints
    with pytest.raises(UsageError, match="run mine has the suites heldout") as error:
        results.curve("min", "held")
    assert "--suite NAME" in error.value.hint


def test_a_run_that_sampled_nothing_has_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = run(monkeypatch, [("heldout", at) for at in EVALUATED])
    monkeypatch.setattr(results, "_asked", lambda *_: pa.table({"round": [3], "tokens": [9]}))
    with pytest.raises(UsageError, match="run mine sampled nothing before its evaluation of round 1"):
        mine.scaling()


@pytest.mark.parametrize(
    ("rounds", "counted"),
    [
        ([], "no evaluation"),
        ([0, 1, 3], "3 evaluations, the first of round 0"),
        ([1, 1, 3, 4, 6], "5 evaluations, the first of round 1"),
    ],
)
def test_a_run_of_too_few_points_is_refused_with_the_way_out(
    rounds: list[int], counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = run(monkeypatch, [("heldout", at) for at in rounds])
    with pytest.raises(UsageError, match=f"run mine has {counted}: a curve needs 5") as error:
        mine.scaling()
    assert error.value.hint == "train more rounds, or set evaluate.every=1"
