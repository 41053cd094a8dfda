"""The reward `verdict`: answers of judges and their values by hand."""

import pytest

from gradus.models.rewards.judges.verdict import judge


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("First [[B]], no: [[a]] ", 1.0),
        ("[[ B ]]", 0.0),
        ("<think>[[A]]</think>they are alike", None),
        ("[[A]]<think>never closed", None),
        ("[[C]]", None),
        ("A", None),
        ("", None),
    ],
)
def test_the_last_verdict_behind_the_thinking_counts(text: str, value: float | None) -> None:
    found = judge({"completion": text}, "", 0)
    assert found.value == value
    assert found.outcome == ("error" if value is None else "")
    assert judge({"completion": text}, "", 0, unread=0.25).value == (0.25 if value is None else value)


def test_choices_between_the_best_and_the_worst_lie_at_equal_distances() -> None:
    found = [judge({"completion": f"[[{word}]]"}, "", 0, choices=("A", "tie", "B")).value for word in ("A", "tie", "b")]
    assert found == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("text", "value"), [("Rating: 8", 0.75), ("2 of 9", 0.875), ("it is 10", 1.0), ("11", None), ("nan", None)]
)
def test_a_number_is_scaled_and_one_outside_of_the_scale_is_none(text: str, value: float | None) -> None:
    found = judge({"completion": text}, "", 0, pattern=r"\d+|nan", choices=(), low=2.0, high=10.0)
    assert found.value == value


def test_a_pattern_without_a_group_is_read_whole() -> None:
    assert judge({"completion": "so: yes"}, "", 0, pattern="yes|no", choices=("yes", "no")).value == 1.0
