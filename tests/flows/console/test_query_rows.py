"""How the rows of a query are shown: side by side where they fit, as records where not, whole as JSON."""

import csv
import io
import json
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.lake.queries import Answer
from gradus.flows.console.query_rows import print_json, print_rows


def found(columns: list[str], rows: Iterable[pa.RecordBatch]) -> Answer:
    return Answer(columns, iter(rows), lambda: None, lambda: pa.Table.from_batches(rows))


def batches(**columns: Any) -> list[pa.RecordBatch]:
    return pa.table(columns).to_batches(max_chunksize=64)


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")


def test_columns_that_fit_stand_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(found(["domain", "reward"], batches(d=["chain_sum/2", None], r=[0.5, None])), None)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split("│")[1:3] == [" chain_sum/2 ", " 0.5    "] for line in lines)
    assert any("null" in line for line in lines)


def test_columns_that_do_not_fit_become_one_record_each_with_whole_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch)
    names = [f"column_{letter}" for letter in "abcdefghij"]
    print_rows(found(names, batches(**{name: [f"first {name}", f"second {name}"] for name in names})), None)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    for number, word in ((1, "first"), (2, "second")):
        record = out.split(f"row {number}")[1].split("row ")[0]
        assert [line.split() for line in record.splitlines() if line.strip()] == [[n, word, n] for n in names]


def test_columns_that_do_not_fit_a_pipe_become_csv(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["question", *(f"column_{letter}" for letter in "abcdefghij")]
    print_rows(found(names, batches(**{name: [f'"{name}",\nwhole', None] for name in names})), None)
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head == names
    assert rows == [[f'"{name}",\nwhole' for name in names], ["null"] * len(names)]


def test_hostile_text_is_neither_a_command_nor_markup_nor_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;owned\x07\x1b[31m[bold]x[/bold]\u202e\nreward 1.0"
    for columns in (["[red]a[/red]\x1b[2J"], ["[red]a[/red]\x1b[2J", *"bcdefghijklmnopqrst"]):
        values = {str(i): [hostile if i == 0 else "y" * 30] for i in range(len(columns))}
        print_rows(found(columns, batches(**values)), None)
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "[red]a[/red]" in out
        assert "[bold]x[/bold]" in out
        if len(columns) > 1:
            assert len(list(csv.reader(io.StringIO(out)))) == 2
        else:
            assert not any(line.startswith("reward") for line in out.splitlines())


def test_a_limit_is_told_and_without_one_all_rows_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    rows = batches(i=list(range(150)))
    print_rows(found(["i"], rows), 100)
    limited = capsys.readouterr().out
    assert "│ 99 " in limited
    assert "│ 100" not in limited
    assert "the first 100 rows; --limit N shows N" in limited.replace("\n", " ")
    for limit in (None, 0, 150):
        print_rows(found(["i"], rows), limit)
        whole = capsys.readouterr().out
        assert "│ 149" in whole
        assert "the first" not in whole
    print_rows(found(["i", "j"], []), None)
    assert capsys.readouterr().out == "no rows (of the columns i, j)\n"


def test_a_terminal_is_shown_a_hundred_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch)
    print_rows(found(["i"], batches(i=list(range(101)))), None)
    out = capsys.readouterr().out
    assert " 99 " in out
    assert "│ 100" not in out
    assert "the first 100 rows" in out


def test_json_is_one_object_with_every_row_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {
        "a": pa.array([1.5, float("nan"), float("-inf")]),
        "b": pa.array([Decimal(12), None, Decimal(2**70)], pa.decimal128(38, 0)),
        "c": pa.array([[("x", 1.0)], [], None], pa.map_(pa.string(), pa.float64())),
    }
    rows = pa.table(columns).to_batches()
    print_json(found(["same", "same", "c"], rows), 0)
    assert json.loads(capsys.readouterr().out) == {
        "columns": ["same", "same", "c"],
        "rows": [[1.5, 12, {"x": 1.0}], ["NaN", None, {}], ["-Infinity", 2**70, None]],
    }
    print_json(found(["same", "same", "c"], rows), 1)
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1
    print_json(found(["none"], []), 0)
    assert json.loads(capsys.readouterr().out) == {"columns": ["none"], "rows": []}


def test_csv_holds_no_formula_for_a_spreadsheet(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(found(["x"], batches(x=["=cmd()", "-0.5", "\x1b[2J+1"] * 100)), None)
    assert capsys.readouterr().out.splitlines()[:4] == ["x", "'=cmd()", "-0.5", "+1"]


def test_a_pipe_of_more_than_a_page_is_csv_whose_limit_is_told_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = batches(i=list(range(300)))
    print_rows(found(["i"], rows), None)
    assert capsys.readouterr().out.split() == ["i", *map(str, range(300))]
    print_rows(found(["i"], rows), 250)
    out, err = capsys.readouterr()
    assert out.split() == ["i", *map(str, range(250))]
    assert "the first 250 rows" in err.replace("\n", " ")


def test_rows_are_written_before_the_last_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch)
    seen: list[bool] = []

    def rows() -> Iterable[pa.RecordBatch]:
        for page in range(5):
            seen.append("│ 0 " in capsys.readouterr().out)
            yield from batches(i=[page] * 201)

    print_rows(found(["i"], rows()), 0)
    assert seen[:2] == [False, True]
