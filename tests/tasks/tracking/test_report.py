"""What people read: hostile text shows as text in tables and on a terminal; nothing vanishes unseen."""

import json
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.tasks.formats import terminal_safe, visible
from gradus.tasks.tracking.facts import sample_table

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=80)


def test_hidden_characters_become_visible() -> None:
    assert visible("a\x00b\x1b[31mc\x7f\x9b\r") == "a␀b␛[31mc␡⟦U+009B⟧␍"
    assert visible("abc\u202edef\u2066") == "abc⟦U+202E⟧def⟦U+2066⟧"
    assert visible("x\ud800y") == "x\N{REPLACEMENT CHARACTER}y"
    assert visible("two\nlines\tand ünïcödé 漢字 שלום") == "two\nlines\tand ünïcödé 漢字 שלום"


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


@settings(max_examples=50)
@given(text=ANY_TEXT)
def test_a_table_of_samples_keeps_numbers_and_shows_any_text_without_hidden_characters(text: str) -> None:
    rows = [{"reward": -1.5, "completion": text}, {"parts": {"b": 2}, "completion": None}]
    table = json.loads(sample_table(rows))
    assert table["columns"] == ["reward", "completion", "parts"]
    assert table["data"] == [[-1.5, visible(text), None], [None, None, '{"b": 2}']]
    assert not [c for c in table["data"][0][1] if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]


def test_a_table_of_samples_is_cut_in_rows_and_cells() -> None:
    table = json.loads(sample_table([{"completion": "a" * 1_000_000}] * 100))
    assert len(table["data"]) == 64
    assert table["data"][0][0].endswith("… (996,000 more characters)")
