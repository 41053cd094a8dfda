"""ROUGE-L, chrF, edits, key points, terms and labels: numbers of rouge-score 0.1.2, sacrebleu 2.6.0 and by hand."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.rewards.base import Verdict
from gradus.models.rewards.judges.texts.chrf import chrf, judge_chrf
from gradus.models.rewards.judges.texts.edits import judge_edit_similarity
from gradus.models.rewards.judges.texts.keywords import judge_key_points, judge_label, judge_terms
from gradus.models.rewards.judges.texts.rouge_l import judge_rouge_l, lcs, plain_words, rouge_l

MANY = 10_000


@pytest.mark.parametrize(
    ("said", "reference", "expected"),
    [
        ("the cat sat on the mat", "The cat is on a mat, today!", 0.6153846153846153),
        ("police killed the gunman", "the gunman killed police", 0.5),
        ("a b c", "d e", 0.0),
        ("One 2 three", "one two 3 three", 0.5714285714285715),
    ],
)
def test_rouge_l_is_that_of_rouge_score(said: str, reference: str, expected: float) -> None:
    assert rouge_l(plain_words(said), plain_words(reference)) == pytest.approx(expected, rel=1e-12)
    assert judge_rouge_l({"completion": f"<think>x</think>{said}"}, reference, MANY).value == pytest.approx(expected)


def test_the_recall_of_rouge_l_may_weigh_more() -> None:
    # lcs 2 of 4 said and 3 wanted: P = 1/2, R = 2/3; beta 2: 5 * 1/3 / (2/3 + 4 * 1/2) = 0.625.
    assert rouge_l("abxy", "abz", 2.0) == pytest.approx(0.625)
    assert judge_rouge_l({"completion": "a"}, "!", MANY).outcome == "error"


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_longest_common_subsequence_is_that_of_the_table(one: str, other: str) -> None:
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    assert lcs(one, other) == lcs(other, one) == table[-1][-1]


@pytest.mark.parametrize(
    ("said", "reference", "expected", "of_three"),
    [
        ("the cat sat on the mat", "the cat is on the mat", 0.645779420625287, 0.7909821667661633),
        ("Der Hund läuft.", "Der Hund rennt schnell.", 0.2982486990129385, 0.4460621015833847),
        ("ab", "abcdefg", 0.2676056338028169, 0.3689320388349514),
        ("x", "y", 0.0, 0.0),
        ("ein Haus", "Das Haus ist ein Haus", 0.3494227174086635, 0.5437239738251041),
    ],
)
def test_chrf_is_that_of_sacrebleu(said: str, reference: str, expected: float, of_three: float) -> None:
    assert chrf(said, reference) == pytest.approx(expected, rel=1e-12)
    assert judge_chrf({"completion": said}, reference, MANY, order=3, beta=1.0).value == pytest.approx(of_three)
    assert chrf(reference, reference) == 1.0


CODE = "def f(x):\n    return x + 1"
EDITS: list[tuple[str, dict[str, Any], float]] = [
    (f"```python\n{CODE}\n```", {}, 1.0),
    (f"```python\n{CODE}\n```", {"python": True}, 1.0),
    (CODE, {}, -1.0),
    (CODE, {"fenced": False}, 1.0),
    ("```python\ndef f(x:\n```", {"python": True}, -1.0),
    ("```python\n\n```", {}, -1.0),
    ("<think>```\na\n```", {"invalid": -2.0}, -2.0),
]


@pytest.mark.parametrize(("said", "settings", "expected"), EDITS)
def test_edits_of_code_that_must_parse(said: str, settings: dict[str, Any], expected: float) -> None:
    assert judge_edit_similarity({"completion": said}, CODE, MANY, **settings).value == expected


def test_edit_similarity_by_hand() -> None:
    # abcd and xbcdy: the block bcd matches, 2 * 3 / (4 + 5).
    assert judge_edit_similarity({"completion": "```\nabcd\n```"}, "xbcdy", MANY).value == pytest.approx(2 / 3)
    long = "ab" * 150  # difflib would take characters for junk that are more than a hundredth of a text this long
    assert judge_edit_similarity({"completion": f"```\n{long}x\n```"}, f"y{long}", MANY).value == pytest.approx(
        600 / 602
    )
    assert judge_edit_similarity({"completion": "```\nabcd\n```"}, "", MANY).outcome == "error"


POINTS = [[["blood", "clot"], ["thrombus"]], [["heart"]]]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("A blood clot stops the heart.", 1.0),
        ("A thrombus stops the Heart", 1.0),
        ("A clot of blood stops the heart.", 0.75),  # lcs 1 of 2 in the first, 1 of 1 in the second
        ("blood blood clot", 1 / 3),  # lcs 2 of 3 said; no heart
        ("heartbeat", 0.0),  # whole words
        ("", 0.0),
    ],
)
def test_key_points_in_their_order(said: str, expected: float) -> None:
    row = {"completion": said, "extra": json.dumps({"key_points": POINTS})}
    assert judge_key_points(row, "The blood clot, in the heart.", MANY).value == pytest.approx(expected)


def test_key_points_that_are_none_are_an_error_of_the_row() -> None:
    for points in (None, [], [[]], [[[]]], [["blood"]], "blood", [[["blood", 3]]]):
        assert judge_key_points({"completion": "x", "key_points": points}, "y", MANY).outcome == "error"


def test_terms_and_their_order() -> None:
    def value(said: str, **settings: float) -> float | None:
        return judge_terms({"completion": said, "terms": ["Netz", "Gewicht", "Schicht"]}, "", MANY, **settings).value

    assert value("Das Netz, das Gewicht, die Schicht") == 1.0
    assert value("Die Schicht, das Gewicht, das Netz") == pytest.approx(0.5 * 1 + 0.5 / 3)
    assert value("Das Netz und die Schicht", order=0.0) == pytest.approx(2 / 3)
    assert value("Netzwerk") == 0.0


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ("cat", "correct"),
        (" Cat\n", "correct"),
        ("It is a cat", "wrong"),
        ("<think></think>cat", "wrong"),
        ("", "wrong"),
    ],
)
def test_a_label_is_the_whole_completion(said: str, outcome: str) -> None:
    assert judge_label({"completion": said}, "Cat", MANY).outcome == outcome
    assert judge_label({"completion": said}, " ", MANY) == Verdict(None, "error", None, "the gold label is empty")
