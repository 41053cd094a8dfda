"""The reward `choice`: which letter a completion states, and that a hedge, an article or a word never counts."""

import json
import string
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.rewards import load, resolve
from gradus.models.rewards.judges.choice import judge, read_answer, read_options

OPTIONS = {"options": ["ibuprofen", "aspirin", "E. coli", "Vitamin C", "B cells"]}


STATED = (
    "\\boxed{B}|so $\\boxed{\\text{B}}$.|\\boxed{\\text{(B) aspirin}}|first \\boxed{A}\nno: \\boxed{B}|(B)|[B]"
    "|B.|B)|b|**B**|**B. aspirin**|**B**. aspirin|B. aspirin|B: aspirin|B)aspirin|Option B|B is correct."
    "|(B) is the correct answer|answer: B|Answer: **B**|**Answer:** B|**Answer**: (B)."
    "|The answer is (B) aspirin|The answer is B, because it blocks COX-1."
    "|The answer is B because it blocks COX-1.|The correct option is B.|The answer is:\n\n(B) aspirin"
    "|the answer is a tree; the answer is B|The answer is B. The answer is B|work\n#### B"
    "|A. ibuprofen is no salicylate.\nB. aspirin is.\n\nB|Ｂ|（Ｂ）|Ⓑ|B. vitamins A and C|The answer is not A.\nB"
    "|<think>A</think>B"
)


@pytest.mark.parametrize(
    ("completion", "letter"), [*((each, "b") for each in STATED.split("|")), ("The answer is I", "i"), ("A", "a")]
)
def test_a_stated_letter_is_read(completion: str, letter: str) -> None:
    assert judge({"completion": completion}, letter, 0).outcome == "correct"
    assert judge({"completion": completion}, "z", 0).outcome == "wrong"


HEDGED = (
    "|The answer is|A or B|A/B|A, B|A & B|(A) and (B)|(A)(B)|A) and B)|A\nB|(A)\n(B)|A. x\nB. y"
    "|A. ibuprofen\nB. aspirin\nC. coli|The answer is A or B|The answer is either A or B"
    "|The answer is **(A)** or **(B)**|The answer is A. The answer is B.|The answer is A or the answer is B"
    "|The answer is (B), not (A)|The answer is:\nA. x\nB. y|B. aspirin or A. ibuprofen|B. aspirin or A"
    "|\\boxed{A or B}|\\boxed{A} or \\boxed{B}|#### A or B|#### A #### B|A tree grows.|I think that it is|A"
    "|The answer is a tree|The answer is I think B|The answer is B cells|The answer is B-cell lymphoma"
    "|The answer is not B|(B) is wrong|(B) cannot be|e.g. this one|a.m.|AB|Bananas|It is b|x = B|<think>B"
    "|\\boxed{}\nB"
)


@pytest.mark.parametrize("completion", HEDGED.split("|"))
def test_a_hedge_an_article_or_a_word_is_never_an_answer(completion: str) -> None:
    for letter in "AB":
        if completion != letter:
            assert judge({"completion": completion}, letter, 0).outcome in ("unparsed", "wrong")
    if len(completion) > 1:
        assert judge({"completion": completion}, "B", 0).outcome == "unparsed"


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        ("The answer is aspirin.", "b"),
        ("**Aspirin**", "b"),
        (r"\boxed{\text{aspirin}}", "b"),
        ("B. aspirin", "b"),
        ("The answer is E. coli", "c"),
        ("D. Vitamin C", "d"),
        ("The answer is B cells", "e"),
        ("B. Vitamin C", None),
        ("B. ibuprofen", None),
        ("The answer is ibuprofen or aspirin", None),
    ],
)
def test_the_text_of_an_option_is_its_letter(completion: str, letter: str | None) -> None:
    assert read_answer(completion, read_options(OPTIONS)) == letter


@pytest.mark.parametrize(
    "gold", ["B", "b", "(B)", "B.", "B. aspirin", "(B) aspirin", "b) aspirin", r"\boxed{B}", "#### B"]
)
def test_a_gold_is_a_letter_with_or_without_its_text(gold: str) -> None:
    assert judge({"completion": "B"}, gold, 0).outcome == "correct"
    assert judge({"completion": "C"}, gold, 0).outcome == "wrong"
    assert judge({"completion": "B", **OPTIONS}, gold, 0).outcome == "correct"


@pytest.mark.parametrize("gold", ["", "aspirin", "A or B", "A, B", "12"])
def test_a_gold_that_is_no_letter_is_an_error_on_the_row(gold: str) -> None:
    verdict = judge({"completion": "B"}, gold, 0)
    assert (verdict.value, verdict.outcome) == (None, "error")


@pytest.mark.parametrize(
    "row",
    [
        OPTIONS,
        {"choices": ["A. ibuprofen", "B. Aspirin", "C. E. coli"]},
        {"options": {"A": "ibuprofen", "B": "aspirin", "C": None}},
        {"choices": {"label": ["A", "B"], "text": ["ibuprofen", "aspirin"]}},
        {"extra": json.dumps({"options": ["ibuprofen", "aspirin"], "year": 1897})},
    ],
)
def test_options_are_read_in_the_shapes_that_data_sets_have(row: dict[str, Any]) -> None:
    assert judge({"completion": "(B)", **row}, "Aspirin", 0).outcome == "correct"
    assert judge({"completion": "aspirin", **row}, "B", 0).outcome == "correct"
    assert judge({"completion": "(A)", **row}, "aspirin", 0).outcome == "wrong"
    assert judge({"completion": "(A)", **row}, "Z", 0).outcome == "error"


@pytest.mark.parametrize("row", [{"extra": "no JSON"}, {"extra": "[1]"}, {"options": {"1": "x"}}, {"options": "A"}])
def test_options_that_cannot_be_read_are_none(row: dict[str, Any]) -> None:
    assert read_options(row) == {}
    assert judge({"completion": "B", **row}, "B", 0).outcome == "correct"


def test_two_options_with_one_text_are_no_answer() -> None:
    options = read_options({"options": ["x1", "x1", "y1"]})
    assert read_answer("x1", options) is None
    assert judge({"completion": "A", "options": ["x1", "x1"]}, "x1", 0).outcome == "error"
    assert judge({"completion": "A", "options": ["B", "A"]}, "B", 0).outcome == "error"


LETTERS = st.sampled_from(string.ascii_uppercase)
WRAPPERS = (r"\boxed{%s}", "(%s)", "[%s]", "%s.", "%s)", "**%s**", "answer: %s", "The answer is (%s).", "#### %s", "%s")
WORK = st.text(alphabet="abc xyz.,()AI\n", max_size=80)


@given(letter=LETTERS, wrapper=st.sampled_from(WRAPPERS), work=WORK, wide=st.booleans(), low=st.booleans())
def test_any_letter_in_any_wrapper_is_found(letter: str, wrapper: str, work: str, wide: bool, low: bool) -> None:
    shown = letter.lower() if low else letter
    shown = chr(ord(shown) - ord("!") + 0xFF01) if wide else shown
    text = f"{work}\n\nThus:\n{wrapper % shown}"
    assert judge({"completion": text}, letter, 0).extracted == letter


@given(
    letters=st.lists(LETTERS, min_size=2, max_size=2, unique=True),
    wrapper=st.sampled_from(WRAPPERS),
    joint=st.sampled_from((" or ", " and ", ", ", " / ", "/", " & ", " and/or ", "; ", " or maybe ")),
    work=WORK,
)
def test_two_letters_in_equal_standing_are_never_correct(
    letters: list[str], wrapper: str, joint: str, work: str
) -> None:
    for text in (joint.join(wrapper % letter for letter in letters), wrapper % joint.join(letters)):
        for gold in letters:
            assert judge({"completion": f"{work}\n\nThus:\n{text}"}, gold, 0).outcome != "correct"


@given(text=st.text(max_size=200), gold=LETTERS)
def test_any_text_is_judged(text: str, gold: str) -> None:
    assert judge({"completion": text}, gold, 0).outcome in ("correct", "wrong", "unparsed")


HOSTILE = "a; ;\n;a\n;(a;( ;answer is ;answer is a ;#### ;#;\\boxed{;\\boxed{a} ;{;A. x\n;or ;or,;a or ;answer;answer*"
HOSTILE += ";\u202e;\ufdfa;\\text{;, b;\t>*;a,/&;option "


@pytest.mark.parametrize("piece", HOSTILE.split(";"))
def test_hostile_text_takes_linear_time(piece: str) -> None:
    def seconds(chars: int) -> float:
        text = (piece * chars)[:chars]
        began = time.process_time()
        judge({"completion": text, **OPTIONS}, "A", 0)
        judge({"completion": f"The answer is A{text}", **OPTIONS}, "A", 0)
        return time.process_time() - began

    assert seconds(100_000) < 2.0


def test_it_is_registered_and_reads_the_options_only() -> None:
    spec = resolve("choice", {})
    assert (spec.verifier, spec.needs_gold, spec.columns) == ("choice@1", True, ("options", "choices", "extra"))
    assert load(spec)({"completion": "B"}, "b").outcome == "correct"
