"""Samplers: shares, exactness of the weights, determinism."""

from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gradus.components.chosen import SamplerConfig
from gradus.data.curation.candidates import Candidates
from gradus.data.curation.results import Draw
from gradus.data.curation.samplers.draws import in_order, stratified, uniform, variance


def pool(rates: list[float | None]) -> Candidates:
    p = pa.array(rates, pa.float64())
    spread = pa.array([None if r is None else r * (1 - r) for r in rates], pa.float64())
    ids = [f"p{i}" for i in range(len(rates))]
    return Candidates(pa.table({"problem_id": ids, "pass_rate": p, "variance": spread}))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_uniform_draws_every_ordered_pair_equally_often() -> None:
    table, generator = pool([None] * 4), rng()
    pairs = [tuple(uniform(table, 2, generator).index.tolist()) for _ in range(6000)]
    share = {pair: pairs.count(pair) / 6000 for pair in permutations(range(4), 2)}
    assert sum(share.values()) == pytest.approx(1)
    assert max(abs(s - 1 / 12) for s in share.values()) < 0.015  # four standard errors


def test_variance_draws_in_proportion_among_those_left() -> None:
    # 4p(1-p) = .75, 1, .36 for p = .25, .5, .9: chances of the first, and of the ordered pair, without replacement
    weight = np.array([0.75, 1.0, 0.36])
    table, generator = pool([0.25, 0.5, 0.9]), rng()
    draws = [tuple(variance(table, 2, generator).index.tolist()) for _ in range(8000)]
    for first, second in permutations(range(3), 2):
        chance = weight[first] / weight.sum() * weight[second] / (weight.sum() - weight[first])
        assert draws.count((first, second)) / 8000 == pytest.approx(chance, abs=0.022)


def test_the_share_for_exploration_goes_to_rows_without_variance() -> None:
    table = pool([0.5] * 20 + [0.0, 1.0, None, None] * 5)
    draw = variance(table, 16, rng(), explore_frac=0.25)
    assert draw.explored.tolist() == [False] * 12 + [True] * 4
    assert set(draw.index[:12]) <= set(range(20))
    assert set(draw.index[12:]) <= set(range(20, 40))
    assert draw.weight.tolist() == [1.0] * 16


@pytest.mark.parametrize(
    ("known", "unknown", "num", "explore_frac", "expected"),
    [
        (20, 1, 16, 0.25, (15, 1)),  # too few to explore: the weighted part fills up
        (2, 20, 16, 0.25, (2, 14)),  # too few to weight: exploration fills up
        (2, 20, 16, 0.0, (2, 0)),  # no exploration asked for: none at all
        (20, 20, 16, 1.0, (0, 16)),
        (3, 2, 16, 0.25, (3, 2)),  # fewer than asked for: all of them
        (0, 5, 3, 0.25, (0, 3)),  # nothing measured yet
    ],
)
def test_one_part_fills_up_for_the_other(
    known: int, unknown: int, num: int, explore_frac: float, expected: tuple[int, int]
) -> None:
    draw = variance(pool([0.5] * known + [None] * unknown), num, rng(), explore_frac=explore_frac)
    assert (int((~draw.explored).sum()), int(draw.explored.sum())) == expected


@given(
    st.lists(st.sampled_from([None, 0.0, 0.125, 0.5, 1.0]), min_size=1, max_size=30),
    st.integers(1, 40),
    st.sampled_from(["uniform", "variance"]),
    st.integers(0, 2**32),
)
@settings(max_examples=50)
def test_a_draw_never_repeats_and_the_seed_decides(rates: list[float | None], num: int, name: str, seed: int) -> None:
    def draw() -> Draw:
        return {"uniform": uniform, "variance": variance}[name](pool(rates), num, rng(seed))

    first = draw()
    assert len(set(first.index.tolist())) == len(first.index) == min(num, len(rates))
    np.testing.assert_array_equal(first.index, draw().index)


def test_names_and_shares_that_do_not_exist_are_refused() -> None:
    for wrong in (
        {"name": "thomson"},
        {"name": "variance", "explore_frac": 1.5},
        {"name": "uniform", "explore_frac": 0.5},
    ):
        with pytest.raises(ValidationError):
            SamplerConfig.model_validate(wrong)


def test_all_takes_the_first_in_order() -> None:
    assert in_order(pool([0.5] * 3), 2, rng()).index.tolist() == [0, 1]
    assert in_order(pool([0.5] * 3), 9, rng()).index.tolist() == [0, 1, 2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=30), st.integers(0, 40), st.integers(0, 9))
def test_a_stratified_draw_has_as_many_of_each_value_as_there_are(
    domains: list[str | None], num: int, seed: int
) -> None:
    ids = [f"p{i}" for i in range(len(domains))]
    table = Candidates(pa.table({"problem_id": ids, "domain": pa.array(domains, pa.string())}))
    index = stratified(table, num, rng(seed)).index.tolist()
    assert len(set(index)) == len(index) == min(num, len(domains))
    drawn = {each: [domains[row] for row in index].count(each) for each in set(domains)}
    most = max(drawn.values())
    assert all(count >= most - 1 or count == domains.count(each) for each, count in drawn.items())


@pytest.mark.slow
def test_of_a_value_every_problem_is_drawn_equally_often() -> None:
    table = Candidates(pa.table({"problem_id": list("abcde"), "domain": ["x", "x", "x", "x", "y"]}))
    generator = rng()
    draws = [stratified(table, 2, generator).index.tolist() for _ in range(4000)]
    assert all(4 in draw for draw in draws)
    shares = [sum(row in draw for draw in draws) / 4000 for row in range(4)]
    assert shares == pytest.approx([0.25] * 4, abs=0.028)  # four standard errors
    odd = [stratified(table, 1, generator).index[0] == 4 for _ in range(4000)]
    assert np.mean(odd) == pytest.approx(0.5, abs=0.032)
