"""The filter where: conditions in SQL by hand, what is refused, and what a condition cannot reach."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.components.chosen import FilterConfig
from gradus.data.curation.candidates import Candidates, candidates, no_candidates
from gradus.data.curation.filters.predicates import where
from gradus.data.curation.results import Selection
from gradus.data.errors import BadInputError, UsageError
from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.config.rounds import TrackerConfig, tracked_by
from gradus.tasks.preflight.checks import check_reads


def pool(**columns: Any) -> Candidates:
    """Levels 1 to 5 and none; pass rates 0, 1/4, 1/2, 1, and none of the last two."""
    levels = [1, 2, 3, 4, 5, None]
    problems = pa.table(
        {
            "problem_id": list("abcdef"),
            "question": [f"{each}?" for each in "abcdef"],
            "domain": ["sums", "sums", "a.b", None, "it's", "sums"],
            "extra": [json.dumps({"level": each} if each else {}) for each in levels],
            **columns,
        }
    )
    return candidates(problems, pa.table({"problem_id": list("abcd"), "n": [4] * 4, "k": [0, 1, 2, 4]}))


def kept(condition: str, **settings: Any) -> str:
    return "".join(pool()["problem_id"][where(pool(), condition=condition, **settings).kept])


@pytest.mark.slow
def test_where_keeps_what_meets_a_condition() -> None:
    assert kept("problem.level >= 3 and pass_rate < 0.75") == "cef"  # of e and f it is unknown
    assert kept("problem.level >= 3 and pass_rate < 0.75", unknown="drop") == "c"
    assert kept("domain = 'a.b' or domain = 'it''s'", unknown="drop") == "ce"
    assert kept("n = 0") == "ef"
    assert kept("pass_rate > (select avg(pass_rate) from candidates) -- 0.4375", unknown="drop") == "cd"
    assert kept("len(history) = 1 and history[1] between 0.2 and 0.6", unknown="drop") == "bc"
    assert kept("row_number() over (partition by domain order by question desc) = 1") == "cdef"
    assert kept("PASS_RATE = 1", unknown="drop") == "d"
    assert kept("true") == "abcdef"
    assert kept("null") == "abcdef"


def test_each_dropped_row_has_a_reason() -> None:
    verdict: Selection = where(pool(), condition="pass_rate < 0.3", unknown="drop")
    assert verdict.reasons.to_pylist() == [
        None,
        None,
        "where: not pass_rate < 0.3",
        "where: not pass_rate < 0.3",
        "where: unknown if pass_rate < 0.3",
        "where: unknown if pass_rate < 0.3",
    ]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("pass_rat < 1", 'Referenced column "pass_rat" not found'),
        ("pass_rate <", "syntax error"),
        ("", "neither true nor false"),
        ("pass_rate", "it is double, neither true nor false"),
        ("true) as a, (true", "it is more than one condition"),
        ("true) as met_ from candidates limit 2; select (true", "only one query that reads"),
        ("unnest([true, false])", "it is more than one condition"),
        ("random() < 0.5", "random may come out differently another time"),
        ("now () > '2020-01-01'", "now may come out differently"),
        ("last_round < CURRENT_TIMESTAMP", "current_timestamp may come out differently"),
        ("question::int > 3", "Could not convert"),
        ("'random()' = 'now' and pass_rat = 1", "not found"),
    ],
)
def test_what_is_no_condition_is_refused_in_one_sentence(condition: str, said: str) -> None:
    with pytest.raises(UsageError, match=r"^the filter where does not take ") as refused:
        where(pool(), condition=condition)
    assert said in refused.value.message
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_condition_reads_no_file_and_changes_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("value\n1\n")
    for reading in (
        f"exists (select * from read_csv('{secret}'))",
        f"exists (select * from '{secret}')",
        f"exists (select * from read_text('{secret}'))",
        f"exists (select * from glob('{tmp_path}/*'))",
        "exists (select * from sqlite_master) and (select count(*) from table_of_somebody) = 1",
    ):
        with pytest.raises(UsageError, match="the filter where does not take"):
            where(pool(), condition=reading)
    copying = f"true) as met_ from candidates; copy candidates to '{tmp_path / 'out.csv'}'; select (true"
    with pytest.raises(UsageError):
        where(pool(), condition=copying)
    with pytest.raises(UsageError):
        where(pool(), condition="true) as met_ from candidates; set enable_external_access = true; select (true")
    assert [each.name for each in tmp_path.iterdir()] == ["secret.csv"]


def test_keys_and_columns_of_trackers_are_read_by_their_names() -> None:
    chosen = FilterConfig.model_validate({"name": "where", "condition": "problem.level > 1 and irt.rate < 0.5"})
    assert [*(chosen.needs or ())][-2:] == ["problem.level", "irt.rate"]
    tracker = TrackerConfig.model_validate("irt")
    assert tracked_by([tracker], [chosen]) == {"irt.rate": ("problem_id",)}
    check_reads(chosen, {"irt.rate": ("problem_id",)})
    with pytest.raises(UsageError, match=r"needs irt.rate, a column of a tracker"):
        check_reads(chosen, {})
    table = pool().table.append_column("irt.rate", pa.array([0.1, 0.2, 0.9, 0.3, None, 0.1]))
    seen = Candidates(table).reading(chosen.needs, "filter where")
    verdict = where(seen, condition="problem.level > 1 and irt.rate < 0.5", unknown="drop")
    assert verdict.kept.tolist() == [False, True, False, True, False, False]
    with pytest.raises(BadInputError, match="no problem has 'size' in its column extra"):
        where(pool(), condition="problem.size > 1")
    mixed = pool(extra=[json.dumps({"level": each}) for each in (1, "two", 3, [4], 5, 6)])
    with pytest.raises(BadInputError, match=r"goes by problem.level, whose values are of several kinds"):
        where(mixed, condition="problem.level > 1")


@pytest.mark.slow
def test_a_wrong_condition_is_refused_before_anything_starts() -> None:
    for right in ("problem.level >= 3", "lower(problem.kind) = 'x'", "pass_rate < 0.5", "problem.hard"):
        assert where(no_candidates(), condition=right).kept.tolist() == []
    for wrong in ("prompt_tokens < 100", "pass_rate"):
        with pytest.raises(UsageError):
            where(no_candidates(), condition=wrong)
    config = CurateConfig.model_validate({"filters": [{"name": "where", "condition": "pass_rat < 1"}]})
    with pytest.raises(UsageError, match='Candidate bindings: "pass_rate"'):
        check_reads(config.filters[0], {})
    assert where(no_candidates().reading(config.filters[0].needs, "filter where"), condition="n > 1").kept.size == 0
