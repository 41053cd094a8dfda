"""Item response theory: the fit against another optimiser and by hand, the tracker over rounds."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.optimize

from gradus.data.curation.round import Round, round_of
from gradus.data.curation.tracked import Tracked, changed_rows, merged
from gradus.data.curation.trackers.responses import fitted, irt

COLUMNS = ("difficulty", "slope", "ability", "rate", "rounds", "right", "wrong")


def round_with(answers: dict[str, list[float | None]], index: int, **columns: Any) -> Round:
    rows = [(problem, group, value) for group, (problem, each) in enumerate(answers.items()) for value in each]
    names, groups, values = zip(*rows, strict=True)
    nobody = pa.nulls(len(rows), pa.string())
    own = {"problem_id": names, "group": groups, "correct": pa.array(values, pa.float64()), "origin": nobody}
    return round_of(pa.table({**own, "hint_level": [0] * len(rows), **columns}), index=index)


def kept(rounds: list[Round], **settings: Any) -> dict[str, Any]:
    """The rows after some rounds, by way of the table that they are kept in."""
    table = changed_rows({name: [] for name in ("problem_id", *COLUMNS)}, ("problem_id",), COLUMNS)
    for each in rounds:
        found = irt(Tracked(table, keys=("problem_id",)), each, **settings)
        table = merged(table, changed_rows(found, ("problem_id",), COLUMNS), ("problem_id",))
    return table.to_pydict()


def test_one_problem_and_one_policy_by_hand() -> None:
    # With spread 1 the maximum has theta = -b by symmetry: 4 sigmoid(2 theta) - 3 + theta = 0.
    def slope_at(theta: float) -> float:
        return 4 / (1 + math.exp(-2 * theta)) - 3 + theta

    theta = scipy.optimize.root_scalar(slope_at, bracket=(-5.0, 5.0)).root
    one = np.zeros(1, np.int64)
    ability, difficulty, slope = fitted(one, one, np.array([3.0]), np.array([1.0]), 1.0, 0.0)
    assert (ability[0], difficulty[0]) == (pytest.approx(theta, abs=1e-5), pytest.approx(-theta, abs=1e-5))
    assert slope.tolist() == [1.0]


@pytest.mark.parametrize("slopes", [False, True])
def test_no_other_optimiser_finds_a_larger_posterior(slopes: bool) -> None:
    rng = np.random.default_rng(3)
    problem, policy = (each.reshape(-1) for each in np.meshgrid(np.arange(5), np.arange(3), indexing="ij"))
    ability, hard, telling = np.array([-1.0, 0.0, 1.5]), np.linspace(-2, 2, 5), np.array([0.5, 1, 2, 1, 0.7])
    right = rng.binomial(8, 1 / (1 + np.exp(-telling[problem] * (ability[policy] - hard[problem])))).astype(float)

    def lost(x: Any) -> float:
        theta, b, log_a = x[:3], x[3:8], x[8:] if slopes else np.zeros(5)
        total = sum(theta**2) / 2 + sum(b**2) / 8 + sum(log_a**2) / 0.5
        for i, t, won in zip(problem, policy, right, strict=True):
            p = 1 / (1 + math.exp(-math.exp(log_a[i]) * (theta[t] - b[i])))
            total -= won * math.log(p) + (8 - won) * math.log(1 - p)
        return float(total)

    oracle = scipy.optimize.minimize(lost, np.zeros(13 if slopes else 8), method="BFGS", options={"gtol": 1e-4})
    theta, b, a = fitted(problem, policy, right, 8 - right, 2.0, 0.5 if slopes else 0.0)
    found = np.concatenate((theta, b, np.log(a) if slopes else []))
    assert lost(found) == pytest.approx(oracle.fun, abs=1e-4)
    np.testing.assert_allclose(found, oracle.x, atol=5e-3)
    assert np.argsort(theta).tolist() == [0, 1, 2]


def test_irt_finds_a_problem_easier_with_the_policy_though_it_is_not_sampled() -> None:
    first = round_with({"a": [1, 0, 0, 0], "b": [1, 1, 0, 0]}, 1)
    second = round_with({"b": [1, 1, 1, 1], "c": [1, 0, None, 1]}, 2)
    one, two = kept([first]), kept([first, second])
    assert one["rate"][0] < one["rate"][1]
    assert two["problem_id"] == ["a", "b", "c"]
    assert two["rate"][0] > one["rate"][0]
    assert (two["rounds"], two["right"], two["wrong"]) == (
        [[1.0], [1.0, 2.0], [2.0]],
        [[1.0], [2.0, 4.0], [2.0]],
        [[3.0], [2.0, 0.0], [1.0]],
    )
    assert two["slope"] == [1.0] * 3
    assert len(set(two["ability"])) == 1
    by_hand = [1 / (1 + math.exp(b - two["ability"][0])) for b in two["difficulty"]]
    assert two["rate"] == pytest.approx(by_hand)
    assert kept([first, second], slopes=True)["slope"] != [1.0] * 3


def test_hints_given_texts_and_old_rounds_do_not_count() -> None:
    bare = round_with({"a": [1.0, 0.0]}, 1)
    more = round_with({"a": [1.0, 0.0, 1.0, 1.0]}, 1, hint_level=[0, 0, 2, 0], origin=[None, None, None, "expert"])
    assert kept([more]) == kept([bare])
    later = round_with({"b": [1.0]}, 4)
    assert kept([bare, later], window=3)["problem_id"] == ["a", "b"]  # a stays as it was
    assert kept([bare, later], window=3)["rounds"] == [[1.0], [4.0]]
    again = round_with({"a": [1.0]}, 4)
    assert [kept([bare, again], window=each)["rounds"] for each in (3, 4)] == [[[4.0]], [[1.0, 4.0]]]
    nothing = round_with({"a": [None]}, 2)
    assert kept([bare, nothing]) == kept([bare])
    assert kept([nothing])["problem_id"] == []
