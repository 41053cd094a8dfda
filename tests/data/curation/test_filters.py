"""Filters: who stays, who goes and the reason that each dropped row bears."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gradus.components.chosen import FilterConfig
from gradus.components.registry import components
from gradus.components.rows import Rows
from gradus.data.curation import results
from gradus.data.curation.candidates import Candidates, candidates
from gradus.data.curation.results import Selection
from gradus.data.errors import UsageError
from gradus.tasks.identity.loading import load

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


def bound(name: str, settings: dict[str, Any]) -> Callable[[Rows], Selection]:
    """A filter with its settings, checked as those of a recipe are."""
    return load(FilterConfig.model_validate({"name": name, **settings}))


def run_filter(table: Candidates, name: str, settings: dict[str, Any]) -> Selection:
    return bound(name, settings)(table)


def apply_filters(table: Candidates, chosen: list[tuple[str, dict[str, Any]]]) -> Selection:
    return results.apply_filters(table, [bound(name, settings) for name, settings in chosen])


def pool(counts: list[tuple[int, int] | None]) -> Candidates:
    """Problems p0, p1 ... with (n, k) each; None is unmeasured."""
    ids = [f"p{i}" for i in range(len(counts))]
    known = [(i, *pair) for i, pair in zip(ids, counts, strict=True) if pair is not None]
    problems = pa.table({"problem_id": pa.array(ids, pa.string()), "question": pa.array(ids, pa.string())})
    if not known:
        return candidates(problems, None)
    problem, n, k = zip(*known, strict=True)
    return candidates(problems, pa.table({"problem_id": problem, "n": n, "k": k}))


def kept(verdict: Selection) -> list[int]:
    return np.flatnonzero(verdict.kept).tolist()


def test_pass_rate_band_holds_both_its_ends() -> None:
    table = pool([(10, 0), (10, 2), (10, 3), (10, 7), (10, 8), None, (0, 0)])
    verdict = run_filter(table, "pass_rate", {"low": 0.2, "high": 0.7})
    assert kept(verdict) == [1, 2, 3, 5, 6]
    assert verdict.reasons.to_pylist()[0] == "pass_rate: below 0.2"
    assert verdict.counts() == {"pass_rate: below 0.2": 1, "pass_rate: above 0.7": 1}


@pytest.mark.parametrize("name", ["pass_rate", "zero_variance", "group_variance"])
def test_unmeasured_problems_stay_unless_asked_away(name: str) -> None:
    table = pool([None, (0, 0), (8, 4)])
    assert kept(run_filter(table, name, {})) == [0, 1, 2]
    dropped = run_filter(table, name, {"unmeasured": "drop"})
    assert kept(dropped) == [2]
    assert dropped.counts() == {f"{name}: never measured": 2}


def test_zero_variance_tells_all_wrong_from_all_right() -> None:
    verdict = run_filter(pool([(8, 0), (8, 8), (8, 1), (1, 1)]), "zero_variance", {})
    assert verdict.reasons.to_pylist() == [
        "zero_variance: all wrong",
        "zero_variance: all right",
        None,
        "zero_variance: all right",
    ]


def test_group_variance_is_normalised_by_the_most_that_the_group_allows() -> None:
    # k(n-k)/floor(n^2/4): 8 of which 1: 7/16 = .4375; 5 of which 2: 6/6 = 1 (p(1-p)/0.25 would be .96); one alone: 0
    table = pool([(8, 1), (8, 4), (5, 2), (5, 1), (1, 1), (8, 8)])
    assert kept(run_filter(table, "group_variance", {"min": 0.4375})) == [0, 1, 2, 3]
    assert kept(run_filter(table, "group_variance", {"min": 1.0})) == [1, 2]
    assert kept(run_filter(table, "group_variance", {"min": 0.0})) == [0, 1, 2, 3, 4, 5]


def test_length_counts_characters_words_and_messages() -> None:
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one two"}]
    table = pa.table(
        {
            "problem_id": ["a", "b", "c"],
            "question": ["a dé f", "abcdefghij", None],
            "messages": pa.array(
                [None, None, said], pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
            ),
        }
    )
    problems = candidates(table, None)
    assert kept(run_filter(problems, "length", {"low": 7})) == [1, 2]  # 6, 10 and 15 characters
    assert kept(run_filter(problems, "length", {"low": 6, "high": 10})) == [0, 1]
    assert kept(run_filter(problems, "length", {"low": 2, "unit": "words"})) == [0, 2]
    assert run_filter(problems, "length", {"high": 3, "unit": "words"}).counts() == {"length: above 3 words": 1}


def test_the_first_filter_that_refuses_gives_the_reason() -> None:
    table = pool([(8, 0), (8, 8), (8, 4), None])
    verdict = apply_filters(table, [("pass_rate", {"high": 0.9}), ("zero_variance", {"unmeasured": "drop"})])
    assert verdict.reasons.to_pylist() == [
        "zero_variance: all wrong",
        "pass_rate: above 0.9",
        None,
        "zero_variance: never measured",
    ]
    assert kept(apply_filters(table, [])) == [0, 1, 2, 3]


@given(
    st.lists(st.one_of(st.none(), st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))),
    st.lists(st.sampled_from(["pass_rate", "zero_variance", "group_variance", "length"]), max_size=4),
    st.sampled_from(["keep", "drop"]),
)
@settings(max_examples=50)
def test_every_row_is_kept_or_has_a_reason(
    counts: list[tuple[int, int] | None], names: list[str], unmeasured: str
) -> None:
    chosen = {
        "pass_rate": {"low": 0.2, "high": 0.8, "unmeasured": unmeasured},
        "zero_variance": {"unmeasured": unmeasured},
        "group_variance": {"min": 0.5, "unmeasured": unmeasured},
        "length": {"high": 2},
    }
    table = pool(counts)
    verdict = apply_filters(table, [(name, chosen[name]) for name in names])
    reasons = verdict.reasons.to_pylist()
    assert [reason is None for reason in reasons] == verdict.kept.tolist()
    assert sum(verdict.counts().values()) == table.num_rows - verdict.kept.sum()
    alone = [set(kept(run_filter(table, name, chosen[name]))) for name in names]
    assert set(kept(verdict)) == set(range(table.num_rows)).intersection(*alone)


@pytest.mark.parametrize(
    ("name", "settings_", "message"),
    [
        ("passrate", {}, "there is no filter .passrate."),
        ("pass_rate", {"lo": 0.1}, "filter pass_rate has no such setting"),
        ("pass_rate", {"low": "few"}, "valid number"),
        ("pass_rate", {"high": float("nan")}, "finite number"),
        ("pass_rate", {"low": 0.8, "high": 0.2}, "keeps nothing"),
        ("pass_rate", {"unmeasured": "maybe"}, "'keep' or 'drop'"),
        ("group_variance", {"min": 1.5}, "less than or equal to 1"),
        ("length", {"unit": "tokens"}, "'chars' or 'words'"),
        ("length", {"low": 10, "high": 5}, "keeps nothing"),
    ],
)
def test_mistaken_settings_are_told(name: str, settings_: dict[str, object], message: str) -> None:
    with pytest.raises((UsageError, ValidationError), match=message):
        apply_filters(pool([(8, 4)]), [(name, settings_)])


def test_every_filter_says_in_its_first_line_what_it_does() -> None:
    first = [each.summary for each in components("filter").values()]
    assert len(first) >= 4
    assert all(line.startswith(("Keep problems", "Drop problems")) for line in first)


@pytest.mark.skipif(not (SHARED / "hints").is_dir(), reason=f"no real data at {SHARED}")
def test_real_difficulty_buckets_come_out_as_given() -> None:
    rows = pq.read_table(SHARED / "hints" / "deepscaler_val200_hints.parquet").to_pylist()
    rewards = [json.loads(r) if isinstance(r := row["rollout_reward_list"], str) else r for row in rows]
    table = pool([(len(r), int(sum(r))) for r in rewards])
    hard = run_filter(table, "pass_rate", {"high": 0.0})
    medium = run_filter(table, "pass_rate", {"low": 0.01, "high": 0.5})
    easy = run_filter(table, "pass_rate", {"low": 0.51})
    assert [int(v.kept.sum()) for v in (hard, medium, easy)] == [87, 46, 46]
    given = np.array([row["difficulty_bucket"] for row in rows])
    assert set(given[hard.kept]) == {"hard"}
    assert set(given[medium.kept]) == {"medium"}
    assert set(given[easy.kept]) == {"easy"}


def test_a_pass_rate_of_an_unknown_number_of_rollouts_is_filtered_by() -> None:
    problems = pa.table({"problem_id": list("abc"), "question": list("abc")})
    rates = pa.table({"problem_id": list("abc"), "n": [0, 0, 0], "k": [0, 0, 0], "pass_rate": [0.0, 0.25, 1.0]})
    rows = candidates(problems, rates)
    assert kept(run_filter(rows, "zero_variance", {})) == [1]
    assert kept(run_filter(rows, "pass_rate", {"low": 0.5})) == [2]
    assert kept(run_filter(rows, "group_variance", {"min": 0.75})) == [1]
    assert kept(run_filter(rows, "group_variance", {"min": 0.76})) == []
