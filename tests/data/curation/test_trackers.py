"""Trackers and the samplers that read them, against numbers by hand."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.rows import Rows
from gradus.data.curation.round import Round, round_of
from gradus.data.curation.samplers.arms import sec as draw_arms
from gradus.data.curation.samplers.prioritised import spo as draw_uncertain
from gradus.data.curation.samplers.thompson import thompson
from gradus.data.curation.tracked import Tracked, changed_rows
from gradus.data.curation.trackers.bandits import sec
from gradus.data.curation.trackers.posteriors import beta_posterior
from gradus.data.curation.trackers.values import spo

BY = ("problem_id",)


def kept(by: Sequence[str] = BY, **columns: Any) -> Tracked:
    return Tracked(changed_rows(columns, by, [name for name in columns if name not in by]), keys=by)


def none(*columns: str, by: Sequence[str] = BY) -> Tracked:
    return kept(by, **{name: [] for name in (*by, *columns)})


def rounds(rewards: dict[str, Sequence[float | None]], columns: Mapping[str, Any] = {}, index: int = 1) -> Round:
    """A round with a group for each problem; `columns` are those of rows."""
    rows = [(problem, group, value) for group, (problem, each) in enumerate(rewards.items()) for value in each]
    names, groups, values = zip(*rows, strict=True)
    reward = pa.array(values, pa.float64())
    nobody = pa.nulls(len(rows), pa.string())
    own = {"problem_id": names, "group": groups, "reward": reward, "correct": reward, "origin": nobody}
    problems = pa.table({"problem_id": list(rewards), "question": list(rewards)})
    return round_of(pa.table({**own, "hint_level": [0] * len(rows), **columns}), problems, index=index)


def test_a_posterior_decays_when_sampled_and_forgets_when_not() -> None:
    # a: .5 * (1, 1) + (1, 2) of three verdicts; b had (3, 1), and is forgotten by a half: 1 + .5 * 2.
    round_ = rounds({"a": [1.0, 0.0, 0.0, None]})
    new = beta_posterior(none("alpha", "beta"), round_, decay=0.5)
    assert new["problem_id"].tolist() == ["a"]
    assert (new["alpha"].tolist(), new["beta"].tolist()) == ([1.5], [2.5])
    before = kept(problem_id=["a", "b"], alpha=[4.0, 3.0], beta=[2.0, 1.0])
    found = beta_posterior(before, round_, decay=0.5, forget=0.5)
    assert found["problem_id"].tolist() == ["a", "b"]
    assert (found["alpha"].tolist(), found["beta"].tolist()) == ([3.0, 2.0], [3.0, 1.0])
    hinted = rounds({"a": [1.0, 0.0]}, {"hint_level": [0, 1]})
    assert beta_posterior(none("alpha", "beta"), hinted, decay=1.0)["beta"].tolist() == [1.0]


def test_spo_begins_at_the_pass_rate_and_forgets_by_the_rounds_since_the_last_visit() -> None:
    # New: 8 counts at one half, and rewards 1 and 0.25 (2 is clipped to 1).
    new = spo(none("alpha", "beta", "value", "round"), rounds({"a": [2.0, 0.25]}, index=3), low=0.875)
    assert (new["alpha"][0], new["beta"][0], new["round"].tolist()) == (5.25, 4.75, [3])
    assert new["value"][0] == pytest.approx(0.525)
    # Two rounds later rho = 2^(-2/8) = 0.841 is raised to low; one round later 2^(-1/8) = 0.917 stands.
    before = kept(problem_id=["a", "b"], alpha=[4.0, 2.0], beta=[4.0, 6.0], round=[3, 4])
    found = spo(before, rounds({"a": [1.0], "b": [0.0]}, index=5))
    assert found["alpha"].tolist() == [0.875 * 4 + 1, pytest.approx(2 ** (-1 / 8) * 2)]
    assert found["beta"].tolist() == [0.875 * 4, pytest.approx(2 ** (-1 / 8) * 6 + 1)]


def test_sec_moves_a_domain_to_the_mean_absolute_advantage_of_its_rows() -> None:
    # 1, 0, 0: mean 1/3, std sqrt(1/3): |A| = 1.1547, .57735, .57735, mean .7698; equal rewards have none.
    domains = ["sums", "sums", "sums", "signs", "signs", None]
    round_ = rounds({"a": [1.0, 0.0, 0.0], "b": [1.0, 1.0], "c": [1.0]}, {"problem.domain": domains})
    before = kept(("problem.domain",), **{"problem.domain": ["signs", "words"], "gain": [0.4, 0.9]})
    found = sec(before, round_, rate=0.25)
    assert found["problem.domain"].tolist() == ["signs", "sums"]
    assert found["gain"].tolist() == [pytest.approx(0.3), pytest.approx(0.25 * 4 / (3 * math.sqrt(3)))]


def test_given_texts_say_nothing_of_the_policy() -> None:
    rewards, given = {"a": [1.0, 0.0], "b": [0.0, 0.0]}, {"a": [1.0, 0.0, 1.0], "b": [0.0, 0.0, 1.0]}
    domain, origin = {"problem.domain": ["sums"] * 4}, [None, "own", "given", None, "own", "teacher"]
    plain, beside = rounds(rewards, domain), rounds(given, {"problem.domain": ["sums"] * 6, "origin": origin})
    for tracker, keys, columns in (
        (beta_posterior, BY, ("alpha", "beta")),
        (spo, BY, ("alpha", "beta", "value", "round")),
        (sec, ("problem.domain",), ("gain",)),
    ):
        empty = none(*columns, by=keys)
        without, with_them = tracker(empty, plain), tracker(empty, beside)
        assert {name: values.tolist() for name, values in with_them.items()} == {
            name: values.tolist() for name, values in without.items()
        }


def test_thompson_takes_the_pass_rates_nearest_to_one_half() -> None:
    # Posteriors so narrow that the draw is the mean: .5, .9 and .6; the last is unknown.
    alpha, beta = np.array([5e8, 9e8, 6e8, np.nan]), np.array([5e8, 1e8, 4e8, np.nan])
    rows = Rows({"beta_posterior.alpha": alpha, "beta_posterior.beta": beta})
    draw = thompson(rows, 4, np.random.default_rng(0))
    known = draw.index[draw.index < 3]
    assert known.tolist() == [0, 2, 1]
    assert dict(zip(draw.index.tolist(), draw.weight.tolist(), strict=True))[1] == pytest.approx(0.36, abs=1e-3)
    assert draw.index[draw.explored].tolist() == [3]
    first = [int(thompson(rows, 1, np.random.default_rng(seed)).index[0]) for seed in range(400)]
    assert set(first) == {0}  # p (1 - p) of no draw is above 1/4
    unknown = np.mean([thompson(rows, 2, np.random.default_rng(seed)).index[1] == 3 for seed in range(2000)])
    assert unknown == pytest.approx(0.2, abs=0.04)  # a uniform p within .4 and .6


def test_spo_draws_by_the_standard_deviation_of_the_reward() -> None:
    # Weights sqrt(.5 * .5) + .1 = .6, and .1 where the outcome is certain; the unknown one counts as one half.
    rows = Rows({"spo.value": np.array([0.5, 1.0, np.nan])})
    draws = [draw_uncertain(rows, 1, np.random.default_rng(seed), epsilon=0.1) for seed in range(3000)]
    share = np.bincount([int(draw.index[0]) for draw in draws], minlength=3) / 3000
    assert share == pytest.approx(np.array([0.6, 0.1, 0.6]) / 1.3, abs=0.035)
    whole = draw_uncertain(rows, 3, np.random.default_rng(0), epsilon=0.1)
    assert sorted(zip(whole.index.tolist(), whole.weight.tolist(), whole.explored.tolist(), strict=True)) == [
        (0, pytest.approx(0.6), False),
        (1, pytest.approx(0.1), False),
        (2, pytest.approx(0.6), True),
    ]


def test_sec_draws_domains_by_the_softmax_of_their_gain() -> None:
    # exp(.5 / .5) against exp(0): e / (1 + e) = .731 of the first draws.
    domains = np.array(["sums", "sums", "signs", "signs", "signs"], dtype=object)
    rows = Rows({"domain": domains, "sec.gain": np.array([0.5, 0.5, np.nan, np.nan, np.nan])})
    draws = [draw_arms(rows, 1, np.random.default_rng(seed), temperature=0.5) for seed in range(2000)]
    assert np.mean([draw.index[0] < 2 for draw in draws]) == pytest.approx(0.731, abs=0.04)
    assert {round(float(draw.weight[0]), 3) for draw in draws} == {0.731, 0.269}
    whole = draw_arms(rows, 9, np.random.default_rng(0), temperature=0.001)
    assert (set(whole.index[:2]), set(whole.index[2:])) == ({0, 1}, {2, 3, 4})
    assert draw_arms(rows, 0, np.random.default_rng(0)).index.tolist() == []
