"""How a result looks to people: a line for each field, whole paths, words for what is empty."""

import doctest

import pytest

from gradus.flows.console import output as console
from gradus.flows.console.output import fields
from gradus.tasks import formats


def test_a_result_is_a_line_a_field_and_no_path_is_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "/a/long/way/" * 8
    fields({"rows": 12000, "refused": {"no answer": 3, "twice": 1}, "examples": [], "reused": True, "out": path})
    assert capsys.readouterr().out.splitlines() == [
        "rows      12,000",
        "refused   no answer: 3, twice: 1",
        "examples  none",
        "reused    yes",
        f"out       {path}",
    ]


def test_numbers_are_rounded_and_deep_values_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    fields({"mean": 0.01171875, "tokens": 12345.6, "deep": [{"value": 0.5}], "none": None})
    assert [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()] == [
        "0.01172",
        "12,346",
        '[{"value": 0.5}]',
        "-",
    ]


def test_figures_are_shown_with_their_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    interval = {"value": 0.35416, "low": 0.1458, "high": 0.5421874999999972}
    fields({"pass_at": {"1": interval, "4": interval}, "versus": {"problems": 12, "gain": interval}, "mean": interval})
    assert capsys.readouterr().out.splitlines() == [
        "pass_at 1        0.354 [0.146, 0.542]",
        "pass_at 4        0.354 [0.146, 0.542]",
        "versus problems  12",
        "versus gain      0.354 [0.146, 0.542]",
        "mean             0.354 [0.146, 0.542]",
    ]


def test_the_examples_of_what_values_look_like_hold() -> None:
    assert doctest.testmod(console).failed == doctest.testmod(formats).failed == 0
