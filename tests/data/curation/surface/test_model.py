"""The response surface: known parameters found again, an oracle of SciPy's, shrinkage, invariants."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from gradus.data.curation.surface.model import FLAT, START, Counts, Layout, Predicted, Spread, Surface, fit

SPREAD = Spread(ability=0.7, kind=1.2, own=1.5, extra=0.5)


def layout(problems: int, policies: int) -> Layout:
    """Without domains."""
    return Layout(policies, np.full(problems, -1))


def counts(*rows: tuple[int, int, float, int, int]) -> Counts:
    problem, policy, share, n, solved = (np.array(column) for column in zip(*rows, strict=True))
    return Counts(problem, policy, share.astype(np.float64), n, solved)


FEW = counts((0, 0, 0.0, 8, 1), (0, 1, 0.0, 4, 2), (1, 0, 0.0, 8, 0), (1, 0, 0.5, 8, 3), (2, 1, 0.25, 4, 4))


def simulated(seed: int, problems: int, policies: int, n: int) -> tuple[Counts, dict[str, Any]]:
    """Every policy samples every problem without a hint, and with one half and all of it."""
    rng = np.random.default_rng(seed)
    ability, difficulty = np.linspace(-2.0, 0.0, policies), rng.normal(0.0, 2.0, problems)
    extra = rng.normal(0.0, 0.5, problems)
    problem, policy, share = (
        each.ravel() for each in np.meshgrid(range(problems), range(policies), [0.0, 0.5, 1.0], indexing="ij")
    )
    logit = ability[policy] - difficulty[problem] + (3.0 + extra[problem]) * share
    solved = rng.binomial(n, special.expit(logit))
    known = {"ability": ability, "difficulty": difficulty, "rate": special.expit(logit)}
    return Counts(problem, policy, share, np.full(len(problem), n), solved), known


def test_parameters_of_simulated_policies_are_found_again() -> None:
    rows, known = simulated(0, problems=400, policies=4, n=8)
    found = fit(rows, layout(400, 4))
    shift = known["difficulty"].mean()  # the model's difficulties have the mean 0
    assert found.ability + shift == pytest.approx(known["ability"], abs=0.1)
    assert found.gain == pytest.approx(3.0, abs=0.15)
    assert found.spread.own == pytest.approx(2.0, abs=0.2)
    assert found.spread.extra == pytest.approx(0.5, abs=0.2)
    assert np.corrcoef(found.difficulty, known["difficulty"])[0, 1] > 0.97
    ahead, error = found.ahead(3, 0)
    assert abs(ahead - 2.0) < 3 * error < 0.4
    predicted = found.predict(rows.problem, rows.policy, rows.share)
    low, high = predicted.interval(0.9)
    assert np.mean((low <= known["rate"]) & (known["rate"] <= high)) == pytest.approx(0.9, abs=0.03)
    assert np.mean((predicted.rate - known["rate"]) ** 2) < np.mean((rows.solved / rows.n - known["rate"]) ** 2) / 3


def test_mode_and_errors_are_those_of_a_general_optimiser() -> None:
    j, p, kinds = 2, 4, np.array([0, 0, 1, -1])  # of the problems the last has no row

    def loss(x: np.ndarray) -> float:
        ability, level, gain, kind, own, extra = x[:j], x[j], x[j + 1], x[j + 2 : j + 4], x[j + 4 : j + 4 + p], x[-p:]
        difficulty = np.append(kind, 0.0)[kinds] + own
        logit = ability[FEW.policy] - difficulty[FEW.problem] + (gain + extra[FEW.problem]) * FEW.share
        seen = np.sum(FEW.solved * logit - FEW.n * np.log1p(np.exp(logit)))
        prior = np.sum((ability - level) ** 2) / 0.7**2 + (level**2 + gain**2) / FLAT**2
        prior += np.sum(kind**2) / 1.2**2 + np.sum(own**2) / 1.5**2 + np.sum(extra**2) / 0.5**2
        return prior / 2 - seen

    best = optimize.minimize(loss, np.zeros(j + 4 + 2 * p), method="BFGS", options={"gtol": 1e-8}).x
    found = fit(FEW, Layout(j, kinds), SPREAD)
    assert found.ability == pytest.approx(best[:j], abs=1e-5)
    assert found.gain == pytest.approx(best[j + 1], abs=1e-5)
    assert found.kind == pytest.approx(best[j + 2 : j + 4], abs=1e-5)
    assert found.difficulty == pytest.approx(
        np.append(best[j + 2 : j + 4], 0.0)[kinds] + best[j + 4 : j + 4 + p], abs=1e-5
    )
    step = 1e-3
    eye = np.eye(len(best)) * step
    hessian = np.array(
        [
            [loss(best + a + b) - loss(best + a - b) - loss(best - a + b) + loss(best - a - b) for a in eye]
            for b in eye
        ]
    ) / (4 * step**2)  # fmt: skip
    covariance = np.linalg.inv(hessian)
    for problem, policy, share in ((0, 0, 0.0), (1, 0, 0.5), (2, 0, 1.0), (3, 1, 0.5)):
        row = np.zeros(len(best))
        row[[policy, j + 1, j + 4 + problem, j + 4 + p + problem]] = 1.0, share, -1.0, share
        row[j + 2 + kinds[problem]] -= kinds[problem] >= 0
        one = found.predict(np.array([problem]), np.array([policy]), np.array([share]))
        assert one.logit[0] == pytest.approx(row @ best, abs=1e-5)
        assert one.error[0] == pytest.approx(np.sqrt(row @ covariance @ row), rel=1e-3)
    row = np.zeros(len(best))
    row[[1, 0]] = 1.0, -1.0
    assert found.ahead(1, 0) == pytest.approx((row @ best, np.sqrt(row @ covariance @ row)), rel=1e-3)


def test_a_problem_without_rows_has_the_population_s_difficulty_and_spread() -> None:
    found = fit(FEW, layout(4, 2), SPREAD)
    assert found.difficulty[3] == 0.0
    seen, unseen = (found.predict(np.array([each]), np.array([0]), np.zeros(1)) for each in (0, 3))
    assert unseen.error[0] > 1.5 > seen.error[0]
    assert unseen.logit[0] == pytest.approx(found.ability[0])


def test_few_rows_move_a_problem_less_than_many() -> None:
    few, many = (fit(counts((0, 0, 0.0, n, 0), (1, 0, 0.0, 8, 4)), layout(2, 1), SPREAD) for n in (2, 32))
    assert 0 < few.difficulty[0] < many.difficulty[0]


def test_a_problem_without_rows_has_the_difficulty_of_its_domain() -> None:
    hard, easy = ([(each, 0, 0.0, 8, k) for each in at] for at, k in ((range(3), 0), (range(3, 6), 7)))
    found = fit(counts(*hard, *easy), Layout(1, np.array([0, 0, 0, 1, 1, 1, 0, 1, -1])))
    of_hard, of_easy, of_none = found.difficulty[6:]
    assert (of_hard, of_easy) == pytest.approx(found.kind)
    assert of_none == 0.0
    assert of_easy < -1
    assert of_hard > 1
    assert found.spread.kind > found.spread.own
    again = fit(counts(*hard, *easy), layout(9, 1))
    assert again.difficulty[6:].tolist() == [0.0, 0.0, 0.0]
    unseen = [each.predict(np.array([6]), np.array([0]), np.zeros(1)) for each in (found, again)]
    assert unseen[0].rate[0] < 0.2 < unseen[1].rate[0]
    assert unseen[0].error[0] < unseen[1].error[0]


def test_spreads_without_evidence_stay_near_the_start() -> None:
    found = fit(counts((0, 0, 0.0, 4, 2)), layout(1, 1)).spread
    assert found.extra == START
    assert 0.5 < found.ability <= START


def test_chances_of_groups_are_means_over_the_posterior() -> None:
    known = Predicted(np.array([0.0, np.log(3.0)]), np.zeros(2))
    assert known.rate == pytest.approx([0.5, 0.75])
    assert known.none_right(2) == pytest.approx([1 / 4, 1 / 16])
    assert known.signal(2) == pytest.approx([1 / 2, 3 / 8])
    assert known.signal(1) == pytest.approx([0.0, 0.0])
    vague = Predicted(np.array([0.0]), np.array([2.0]))
    draws = special.expit(2.0 * np.random.default_rng(0).standard_normal(400_000))
    assert vague.none_right(8)[0] == pytest.approx(np.mean((1 - draws) ** 8), abs=0.002)
    assert vague.signal(8)[0] == pytest.approx(np.mean(1 - draws**8 - (1 - draws) ** 8), abs=0.002)


@st.composite
def cells(draw: st.DrawFn) -> list[tuple[int, int, float, int, int]]:
    num = draw(st.integers(1, 8))
    rows = []
    for _ in range(num):
        n = draw(st.integers(1, 9))
        share = draw(st.sampled_from([0.0, 0.25, 1.0]))
        rows.append((draw(st.integers(0, 3)), draw(st.integers(0, 2)), share, n, draw(st.integers(0, n))))
    return rows


def everywhere(found: Surface) -> Predicted:
    problem, policy, share = (each.ravel() for each in np.meshgrid(range(4), range(3), [0.0, 0.25, 1.0], indexing="ij"))
    return found.predict(problem, policy, share)


@pytest.mark.slow
@settings(max_examples=15)
@given(cells(), st.randoms(use_true_random=False))
def test_neither_order_nor_splitting_of_rows_changes_anything(rows: list[Any], random: Any) -> None:
    split = [
        each
        for problem, policy, share, n, solved in rows
        for each in ((problem, policy, share, n - solved, 0), (problem, policy, share, solved, solved))
        if each[3]
    ]
    random.shuffle(split)
    one, other = (everywhere(fit(counts(*each), layout(4, 3))) for each in (rows, split))
    assert other.logit == pytest.approx(one.logit, abs=1e-4)
    assert other.error == pytest.approx(one.error, abs=1e-4)


@pytest.mark.slow
@settings(max_examples=15)
@given(cells(), st.integers(0, 7))
def test_chances_rise_with_ability_and_with_one_more_solved(rows: list[Any], which: int) -> None:
    before = fit(counts(*rows), layout(4, 3), SPREAD)
    order = np.argsort(before.ability)
    for problem in range(4):
        along = before.predict(np.full(3, problem), order, np.zeros(3)).logit
        assert (np.diff(along) >= -1e-6).all()
    problem, policy, share, n, solved = rows[which % len(rows)]
    if solved < n:
        rows[which % len(rows)] = (problem, policy, share, n, solved + 1)
        cell = np.array([problem]), np.array([policy]), np.array([share])
        assert fit(counts(*rows), layout(4, 3), SPREAD).predict(*cell).logit[0] > before.predict(*cell).logit[0]


def test_the_line_of_a_problem_is_what_is_predicted_at_every_share() -> None:
    found = fit(FEW, layout(4, 2))
    line, every = found.lines(1), np.arange(4)
    for share in (0.0, 0.3, 0.5, 1.0, 2.0):
        at = found.predict(every, np.ones(4, np.int64), np.full(4, share))
        assert line.bare + share * line.gain == pytest.approx(at.logit)
        var = line.bare_var + 2 * share * line.covariance + share**2 * line.gain_var
        assert np.sqrt(var) == pytest.approx(at.error)


def test_the_spread_of_a_chance_is_that_of_draws() -> None:
    logit, error = np.array([-3.0, 0.0, 1.0]), np.array([0.1, 2.0, 5.0])
    drawn = special.expit(np.random.default_rng(0).normal(logit, error, (400_000, 3)))
    assert Predicted(logit, error).rate_sd == pytest.approx(drawn.std(0), abs=2e-3)
