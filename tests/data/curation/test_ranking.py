"""Rankings: the historical variance score against NumPy row by row, ties, gaps."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.curation.candidates import Candidates, candidates
from gradus.data.curation.filters.histories import limr
from gradus.data.curation.rankings import measured
from gradus.data.curation.rankings.measured import column, historical_std
from gradus.data.curation.results import rank
from gradus.data.errors import UsageError


def pool(histories: dict[str, list[float] | None]) -> Candidates:
    ids = list(histories)
    problems = pa.table({"problem_id": pa.array(ids, pa.string()), "question": pa.array(ids, pa.string())})
    known = {i: h for i, h in histories.items() if h is not None}
    if not known:
        return candidates(problems, None)
    measured = pa.table(
        {
            "problem_id": list(known),
            "n": [8] * len(known),
            "k": [4] * len(known),
            "history": pa.array(known.values(), pa.list_(pa.float64())),
        }
    )
    return candidates(problems, measured)


def named(table: Candidates, by: str) -> list[str]:
    return table["problem_id"][rank(table, getattr(measured, by))[0]].tolist()


def test_historical_std_of_ragged_histories_by_hand() -> None:
    # population std: [0, 1] -> 1/2; [0, .5, 1] -> sqrt(1/6); one entry -> 0
    scores = historical_std(pool({"a": [0.0, 1.0], "b": [0.0, 0.5, 1.0], "c": [0.7], "d": [], "e": None}))
    np.testing.assert_allclose(scores, [0.5, 0.408248290463863, 0.0, np.nan, np.nan], atol=1e-15)


def test_highest_first_ties_by_id_unmeasured_last() -> None:
    table = pool({"z": None, "d": [0.5], "b": [1.0, 0.0], "a": [0.0, 1.0], "c": [0.25, 0.5], "y": None})
    assert named(table, "historical_std") == ["a", "b", "c", "d", "y", "z"]


def test_the_same_history_in_another_order_is_a_tie() -> None:
    values = [0.1, 0.8, 0.8, 0.3, 0.5]
    table = pool({"b": values, "a": sorted(values)})
    of_b, of_a = historical_std(table)
    assert of_b > of_a  # summed in these two orders the std differs in its last bit
    assert named(table, "historical_std") == ["a", "b"]


@pytest.mark.slow
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(st.floats(0, 1), max_size=6), min_size=1))
@settings(max_examples=50)
def test_historical_std_equals_numpy_and_the_order_is_total(histories: dict[str, list[float]]) -> None:
    table = pool(dict(histories))
    order, scores = rank(table, historical_std)
    expected = [np.std(h) if h else np.nan for h in histories.values()]
    # An empty history of a measured row stays empty: n and k alone make no accuracy over epochs.
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    assert sorted(order.tolist()) == list(range(len(histories)))
    keys = [(-np.round(np.nan_to_num(scores[i], nan=-1), 12), list(histories)[i]) for i in order]
    assert keys == sorted(keys)


def test_variance_and_pass_rate_rank_by_the_counts() -> None:
    problems = pa.table({"problem_id": ["a", "b", "c", "d"], "question": ["?"] * 4})
    table = candidates(problems, pa.table({"problem_id": ["a", "b", "c"], "n": [8, 8, 8], "k": [8, 5, 4]}))
    assert named(table, "variance") == ["c", "b", "a", "d"]
    assert named(table, "pass_rate") == ["a", "b", "c", "d"]


def test_mean_and_variance_of_graded_rewards_rank_and_unrewarded_problems_come_last() -> None:
    problems = pa.table({"problem_id": list("abcd"), "question": list("abcd")})
    known = pa.table(
        {
            "problem_id": ["a", "b", "c"],
            "n": [0, 0, 8],
            "k": [0, 0, 8],
            "reward_n": [4, 4, 8],
            "reward_mean": [0.2, -0.5, 1.0],
            "reward_variance": [0.1, 0.3, 0.0],
        }
    )
    table = candidates(problems, known)
    assert named(table, "reward_mean") == ["c", "a", "b", "d"]
    assert named(table, "reward_variance") == ["b", "a", "c", "d"]
    assert named(table, "pass_rate") == ["c", "a", "b", "d"]  # a and b have no verdict: unmeasured, as d


def test_limr_keeps_problems_that_rose_as_all_did() -> None:
    # Means 1/3, 1/2, 1; sum (1 - m)^2 = 25/36. a: 1 - 4/25, b: 1 - 13/25, c: 1 - 25/25.
    known = {"a": [0.0, 0.5, 1.0], "b": [0.0, 0.0, 1.0], "c": [1.0, 1.0, 1.0]}
    table = pool({"z": None, **known})
    np.testing.assert_allclose(measured.limr(table), [np.nan, 0.84, 0.48, 0.0], atol=1e-12)
    assert named(table, "limr") == ["a", "b", "c", "z"]
    verdict = limr(table, min=0.48 - 1e-9)
    assert verdict.kept.tolist() == [True, True, True, False]
    assert limr(table, min=0.6, unmeasured="drop").counts() == {
        "limr: never measured": 1,
        "limr: alignment below 0.6": 2,
    }
    short = measured.limr(pool({"d": [1 / 3], **known}))  # the first mean stays 1/3: nothing apart
    np.testing.assert_allclose(short, [1.0, 0.84, 0.48, 0.0], atol=1e-12)
    solved = pool({"a": [1.0], "b": [1.0]})
    assert np.isnan(measured.limr(solved)).all()
    assert limr(solved).kept.all()


def test_a_column_ranks_in_either_direction_and_unknown_ones_stand_last() -> None:
    extra = ['{"level": 3}', '{"level": 1}', "{}", '{"level": 2}']
    problems = pa.table({"problem_id": list("abcd"), "question": list("abcd"), "extra": extra})
    table = candidates(problems, None)
    for lowest, expected in ((False, "adbc"), (True, "bdac")):
        order, _ = rank(table, lambda rows, lowest=lowest: column(rows, column="problem.level", lowest=lowest))
        assert "".join(table["problem_id"][order]) == expected
    with pytest.raises(UsageError, match="cannot be ranked by question, which holds no numbers"):
        column(table, column="question")
