"""The rows of one run: what `sampled` joins, and what a filter may be."""

from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.sql_views import COLUMNS, open_run


def test_a_rollout_has_what_its_score_and_its_update_say(rows: Any) -> None:
    found = rows.ask(
        "select round, purpose, problem_id, sample, hint_level, tokens, reward, correct, outcome, advantage, mismatch, "
        "domain from sampled where problem_id = 'b' order by round, purpose, sample"
    )
    assert found == [
        (1, "hint2", "b", 0, 2, 11, 1.0, True, "correct", 0.5, 0.25, "sums"),
        (1, "hint2", "b", 1, 2, 12, 0.0, False, "wrong", -0.5, 0.25, "sums"),
        (1, "train", "b", 0, 0, 11, 0.0, False, "wrong", -0.5, 0.25, "sums"),
        (1, "train", "b", 1, 0, 12, 0.0, False, "wrong", -0.5, 0.25, "sums"),
        (2, "train", "b", 0, 0, 21, 1.0, True, "correct", 0.5, 0.5, "sums"),
        (2, "train", "b", 1, 0, 22, 0.0, False, "wrong", -0.5, 0.5, "sums"),
    ]


def test_the_change_of_a_problem_leaves_hints_out(rows: Any) -> None:
    found = dict(rows.ask("select distinct problem_id, change from sampled"))
    assert found == {"a": 0.5, "b": 0.5, "c": 0.0, "d": 0.5, "e": -0.5}


def test_every_rollout_is_there_once_with_all_columns(rows: Any) -> None:
    assert rows.one("select count(*), count(distinct rollout_id) from sampled") == (24, 24)
    assert [name for name, *_ in rows.ask("describe sampled")] == list(COLUMNS)


@pytest.mark.parametrize(
    ("condition", "number"),
    [
        ("reward = 1", 7),
        ("hint_level > 0 and correct", 1),
        ("completion like '%of hint2%'", 4),
        ("reward = 1 -- a remark", 7),
        ("question like '1 +%'", 4),
        ("change < 0", 4),
    ],
)
def test_a_filter_is_a_condition_over_figures_or_texts(rows: Any, condition: str, number: int) -> None:
    where = rows.matching(condition)
    assert rows.one(f"select count(*) from sampled where {where}") == (number,)


@pytest.mark.parametrize(
    "condition",
    [
        "reward = 1); drop table sampled; select (1",
        "nonesuch > 1",
        "reward >",
        "select 1",
        "reward = (",
        "1; 2",
        "",
        "problem_id::int > 1",
        "?",
    ],
)
def test_what_is_no_condition_is_refused_and_changes_nothing(rows: Any, condition: str) -> None:
    with pytest.raises(UsageError, match="filter"):
        rows.matching(condition)
    assert rows.one("select count(*) from sampled") == (24,)


def test_a_filter_reads_no_file_and_writes_none(rows: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with pytest.raises(UsageError, match="filter"):
        rows.matching(f"exists (select * from read_csv('{secret}'))")


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run nonesuch"), open_run(Home(tmp_path), "nonesuch", print):
        pass


def test_help_is_counted_by_round_and_level(rows: Any) -> None:
    # Round 1: a 1 of 2, b and c never; with a hint of two tokens b 1 of 2, c never. Round 2: a 2 of 2, b 1 of 2.
    assert rows.ask("select * exclude (run) from help order by round, helped") == [
        (1, False, 0, 3, 6, 1 / 6, None, None, None, 0, None, 3 * (11 + 12), None, None),
        (1, True, 2, 2, 4, 0.25, 4, 0.25, 0.0, 1, 4 * 2, 2 * (11 + 12), None, None),
        (2, False, 0, 3, 6, 0.5, None, None, None, 0, None, 3 * (21 + 22), 2, 0.5),
    ]
