"""What people read: hostile text shows as text in HTML, Markdown, CSV and on a terminal; nothing vanishes unseen."""

import csv
import io
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.tasks.formats import terminal_safe, visible
from gradus.tasks.tracking.facts import head_csv, sample_html, summary_md, table_md, write_report

HOSTILE = [
    "<script>alert(document.cookie)</script>",
    "</pre></dd><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% for x in y %}",
    '" onmouseover="alert(1)',
    "<style>body{display:none}</style>",
    "<iframe src='http://evil.example'></iframe>",
]
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=80)


class Tags(HTMLParser):
    """The elements, attributes and text that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {"html", "head", "meta", "title", "style", "body", "h1", "p", "article", "dl", "dt", "dd", "pre"}


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_of_a_policy_is_shown_and_never_becomes_markup(text: str) -> None:
    page = Tags(sample_html(text, [{"completion": text, text: "a name"}]))
    assert page.names <= OURS
    assert not {name for name in page.attributes if name.startswith("on")}
    assert text in page.text


@settings(max_examples=50)
@given(text=ANY_TEXT)
def test_no_text_at_all_escapes_its_place_in_the_page(text: str) -> None:
    page = sample_html("t", [{"completion": text}])
    assert Tags(page).names <= OURS
    page.encode("utf-8")
    assert not [c for c in page if unicodedata.category(c) == "Cc" and c not in "\n\t"]


def test_an_outcome_cannot_name_a_class_of_its_own() -> None:
    page = sample_html("t", [{"outcome": 'x"><script>'}, {"outcome": "correct"}, {"outcome": ["wrong"]}])
    assert page.count('<article class="">') == 2
    assert page.count('<article class="correct">') == 1


def test_the_page_may_load_and_run_nothing() -> None:
    page = sample_html("t", [{"a": 1}])
    assert "default-src 'none'" in page
    assert "script" not in Tags(page).names


def test_hidden_characters_become_visible() -> None:
    assert visible("a\x00b\x1b[31mc\x7f\x9b\r") == "a␀b␛[31mc␡⟦U+009B⟧␍"
    assert visible("abc\u202edef\u2066") == "abc⟦U+202E⟧def⟦U+2066⟧"
    assert visible("x\ud800y") == "x\N{REPLACEMENT CHARACTER}y"
    assert visible("two\nlines\tand ünïcödé 漢字 שלום") == "two\nlines\tand ünïcödé 漢字 שלום"


def test_a_line_of_a_megabyte_is_cut_with_a_note() -> None:
    page = sample_html("t", [{"completion": "a" * 1_000_000}])
    assert len(page) < 10_000
    assert "… (996,000 more characters)" in page


def test_what_a_terminal_would_obey_is_left_out() -> None:
    assert (
        terminal_safe("a\x1b[31mred\x1b[0m\x1b]0;title\x07b\x1b]8;;http://x\x1b\\link\x08\x9b31m\x00") == "aredblink31m"
    )
    assert terminal_safe("good\u202edab") == "gooddab"
    assert terminal_safe("one\ntwo\tthree") == "one\ntwo\tthree"
    assert terminal_safe("open \x1b]0;never closed\nnext line") == "open \nnext line"


@settings(max_examples=50)
@given(text=ANY_TEXT)
def test_safe_text_holds_no_control_character_and_stays_safe(text: str) -> None:
    safe = terminal_safe(text)
    assert not [c for c in safe if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert terminal_safe(safe) == safe


@pytest.mark.parametrize("text", ["=1+1", "+A1", "-A1", "@SUM(A1)", "|calc", "=cmd|' /C calc'!A0", "-2+3"])
def test_a_spreadsheet_computes_nothing(text: str) -> None:
    (_, cell) = csv.reader(io.StringIO(head_csv([{"completion": text}])))
    assert cell == ["'" + text]


def test_numbers_stay_numbers_and_columns_are_those_of_all_rows() -> None:
    rows = list(csv.reader(io.StringIO(head_csv([{"reward": -1.5, "a": "-3"}, {"b": 'x,"y"\nz', "c": None}]))))
    assert rows == [["reward", "a", "b", "c"], ["-1.5", "-3", "", ""], ["", "", 'x,"y"\nz', ""]]


def test_the_summary_says_how_it_ended_and_escapes_what_it_shows() -> None:
    page = summary_md(
        "score-3",
        {"status": "failed", "error": "row <b>p1</b> | `x`"},
        {"summary": {"rows": 8, "reasons": {"too long": 2}}, "metrics": {"reward/mean": 0.5}},
    )
    assert "row &lt;b&gt;p1&lt;/b&gt; \\| \\`x\\`" in page
    assert "| reward/mean | 0.5 |" in page
    assert "<b>" not in page


def test_a_table_cell_cannot_begin_a_new_row() -> None:
    assert table_md(("a",), [("x\n| y |",)]).count("\n") == 2


def test_a_stage_without_samples_has_a_summary_only(tmp_path: Path) -> None:
    write_report(tmp_path, "curate-1", {"status": "finished"}, {"summary": {"kept": 3}})
    assert [p.name for p in tmp_path.iterdir()] == ["summary.md"]
    write_report(tmp_path, "score-1", {}, {"samples": [{"completion": "\ud800 \x00"}]})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head.csv", "sample.html", "summary.md"]
