"""Intervals over seeds and problems: by hand, against SciPy, and how often they hold the truth."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn
from scipy import stats

from gradus.data.intervals import Mean, by_cluster, crossed, holm, mean_of, share_interval


def test_a_table_of_two_seeds_and_three_problems_by_hand() -> None:
    # seed means 2 and 4, problem means 1, 3 and 5, mean 3; residuals +-1, 0, -+1
    values = np.array([[1.0, 2.0, 3.0], [1.0, 4.0, 7.0]])
    found = crossed(values)
    assert (found.mean, found.ms_seeds, found.ms_problems, found.ms_rest) == (3.0, 6.0, 8.0, 2.0)
    assert found.variance == pytest.approx((6 + 8 - 2) / 6)
    # 12^2 / (6^2 / 1 + 8^2 / 2 + 2^2 / 2)
    assert found.freedom == pytest.approx(144 / 70)
    interval = mean_of(values, span=10).interval(0.9)
    half = stats.t.ppf(0.95, 144 / 70) * math.sqrt(2)
    assert (interval["low"], interval["high"]) == pytest.approx((3 - half, 3 + half))


@given(st.integers(2, 5), st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=30)
def test_mean_squares_are_the_sums_of_an_analysis_of_variance(seeds: int, problems: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(seeds, problems)).round(2)
    mean = sum(sum(row) for row in values) / (seeds * problems)
    of_seed = [sum(values[s]) / problems for s in range(seeds)]
    of_problem = [sum(values[:, p]) / seeds for p in range(problems)]
    total = sum((values[s, p] - mean) ** 2 for s in range(seeds) for p in range(problems))
    ss_seeds = sum(problems * (m - mean) ** 2 for m in of_seed)
    ss_problems = sum(seeds * (m - mean) ** 2 for m in of_problem)
    found = crossed(values)
    assert found.ms_seeds == pytest.approx(ss_seeds / (seeds - 1))
    assert found.ms_problems == pytest.approx(ss_problems / (problems - 1))
    assert found.ms_rest == pytest.approx((total - ss_seeds - ss_problems) / ((seeds - 1) * (problems - 1)))
    assert 1 <= found.freedom <= seeds * problems
    alone = max(found.ms_seeds, found.ms_problems) / (seeds * problems)
    assert found.variance >= alone


def test_one_seed_is_students_interval_over_problems() -> None:
    values = np.random.default_rng(5).integers(-8, 9, size=60) / 8
    found = mean_of(values[None])
    scipys = stats.ttest_1samp(values, 0.0)
    interval = scipys.confidence_interval(0.95)
    assert (found.interval()["low"], found.interval()["high"]) == pytest.approx((interval.low, interval.high))
    assert found.p_different() == pytest.approx(scipys.pvalue)
    below = stats.ttest_1samp(values, 0.2, alternative="less").pvalue
    above = stats.ttest_1samp(values, -0.2, alternative="greater").pvalue
    assert found.p_equivalent(0.2) == pytest.approx(max(below, above))


NUM_REPETITIONS = 2000
EFFECT = 0.04


def covered(values: np.ndarray, truth: float) -> float:
    """The share of repetitions whose 95 % interval holds the truth."""
    found = crossed(values)
    half = stats.t.ppf(0.975, found.freedom) * np.sqrt(found.variance)
    return float((np.abs(found.mean - truth) <= half).mean())


def differences(rng: np.random.Generator, seeds: int, problems: int, over_seeds: float, repetitions: int) -> np.ndarray:
    """Differences of two methods of which each has its own effect of seeds; problems and cells differ, too."""
    shape = (repetitions, seeds, problems)
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= 0.2
    values += 0.1 * rng.standard_normal((repetitions, 1, problems), dtype=np.float32)
    values += over_seeds * math.sqrt(2) * rng.standard_normal((repetitions, seeds, 1), dtype=np.float32)
    values += EFFECT
    return values


@pytest.mark.slow
@pytest.mark.parametrize("problems", [500, 1319])
def test_an_interval_of_95_percent_holds_the_truth_about_as_often(problems: int) -> None:
    rng = np.random.default_rng(7)
    hits: dict[int, list[float]] = {3: [], 5: [], 10: []}
    for _ in range(10):  # so that not all is in memory at once
        values = differences(rng, 10, problems, 0.03, NUM_REPETITIONS // 10)
        for seeds, found in hits.items():
            found.append(covered(values[:, :seeds], EFFECT))
    shares = {seeds: float(np.mean(found)) for seeds, found in hits.items()}
    assert all(0.91 <= share <= 0.97 for share in shares.values()), shares


@pytest.mark.parametrize("over_seeds", [0.0, 0.03])
def test_verdicts_of_few_samples_are_covered_too(over_seeds: float) -> None:
    rng = np.random.default_rng(8)
    num, seeds, problems, samples = 400, 5, 200, 4
    solved = 0.2 + 0.6 * rng.beta(0.5, 0.5, size=(num, 1, problems))  # away from 0 and 1, so that the truth is exact
    rates = [solved + over_seeds * rng.uniform(-1.7, 1.7, (num, seeds, 1)) + effect for effect in (0.0, EFFECT)]
    one, other = (rng.binomial(samples, rate) / samples for rate in rates)
    assert 0.91 <= covered(other - one, EFFECT) <= (0.97 if over_seeds else 0.99)  # without seeds it is conservative


@pytest.mark.parametrize("shape", [(0.5, 0.5), (0.4, 3.6), (3.8, 0.2)])
def test_the_interval_of_a_pass_rate_holds_the_truth_about_as_often(shape: tuple[float, float]) -> None:
    rng = np.random.default_rng(9)
    truth, hits = shape[0] / sum(shape), 0
    for _ in range(400):
        found = share_interval((rng.binomial(8, rng.beta(*shape, size=50)) / 8)[None])
        hits += found["low"] <= truth <= found["high"]
    assert 0.91 <= hits / 400 <= 0.985


def test_one_verdict_a_problem_is_wilsons_interval() -> None:
    values = np.array([[1.0] * 7 + [0.0] * 33])
    found = share_interval(values)
    size = 40 * 39 / 40  # the variance is that of a sample
    centre, half = stats.t.ppf(0.975, 39) ** 2 / size, stats.t.ppf(0.975, 39) / math.sqrt(size)
    low = (7 / 40 + centre / 2 - half * math.sqrt(7 / 40 * 33 / 40 + centre / 4)) / (1 + centre)
    assert found["low"] == pytest.approx(low)
    scipys = stats.binomtest(7, 40).proportion_ci(method="wilson")
    assert (found["low"], found["high"]) == pytest.approx((scipys.low, scipys.high), abs=0.01)


def test_values_that_all_agree_have_a_width() -> None:
    assert share_interval(np.ones((1, 12)))["low"] == pytest.approx(0.71, abs=0.01)
    assert share_interval(np.zeros((3, 12)))["high"] == pytest.approx(0.29, abs=0.01)
    few, many = (mean_of(np.zeros((5, problems))) for problems in (12, 1319))
    assert few.interval()["high"] == pytest.approx(0.24, abs=0.01)
    assert few.p_equivalent(0.02) > 0.3  # twelve problems prove nothing
    assert many.p_equivalent(0.02) < 1e-6


@given(hn.arrays(np.float64, hn.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(0, 1)))
@settings(max_examples=60)
def test_an_interval_holds_its_value_has_a_width_and_stays_within_what_is_possible(values: np.ndarray) -> None:
    share, mean = share_interval(values), mean_of(values - values[::-1]).interval()
    assert 0 <= share["low"] <= share["value"] <= share["high"] <= 1
    assert -1 <= mean["low"] < mean["value"] < mean["high"] <= 1
    assert share["low"] < share["high"]


@pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 0)), np.zeros(3), np.array([[1.0, np.nan]])])
def test_no_values_or_unknown_ones_are_refused(values: np.ndarray) -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        crossed(values)


def test_clusters_keep_the_mean_and_widen_the_interval_if_their_problems_agree() -> None:
    rng = np.random.default_rng(3)
    cluster = np.repeat(np.arange(20), [5, 15] * 10)
    alike = rng.normal(0, 0.3, size=20)[cluster] + rng.normal(0, 0.05, size=(3, 200))
    found = by_cluster(alike, cluster)
    assert found.shape == (3, 20)
    assert found.mean(axis=1) == pytest.approx(alike.mean(axis=1))
    assert crossed(found).variance > 5 * crossed(alike).variance
    each = by_cluster(alike, np.arange(200))
    assert each == pytest.approx(alike)


def test_holm_by_hand_and_in_any_order() -> None:
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])
    assert holm(np.array([0.6, 0.001])) == pytest.approx([0.6, 0.002])


def test_p_values_and_intervals_agree() -> None:
    edge = Mean(value=0.05, error=0.05 / stats.t.ppf(0.975, 7), freedom=7)
    assert edge.p_different() == pytest.approx(0.05)
    assert edge.interval()["low"] == pytest.approx(0.0)
