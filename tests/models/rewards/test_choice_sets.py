"""The reward `choice` with several right answers: exactly the stated letters count, and one letter reads as before."""

import json
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.rewards import load, resolve
from gradus.models.rewards.judges.choice import judge
from gradus.models.rewards.judges.letters import letters_of

OPTIONS = {"options": ["ibuprofen", "aspirin", "E. coli", "Vitamin C"]}

STATED = (
    "#### B, D|#### BD|#### (B) and (D)|\\boxed{BD}|\\boxed{B, D}|so $\\boxed{\\text{B and D}}$.|\\boxed{\\{B, D\\}}"
    "|$\\boxed{B}$ and $\\boxed{D}$|first \\boxed{A}\nno: \\boxed{DB}|The answers are B and D|the answer is (B), (D)."
    "|**Answers:** B & D|Correct options: D; B|The answers are:\n\nB + D"
    "|The answers are B and D, because both block it."
    "|(B) and (D) are correct.|B, D|BD|both B and D"
    "|The answer is a set. The answers are B and D|<think>A, C</think>B and D|Ｂ，Ｄ|B, D, and B"
)


@pytest.mark.parametrize("said", STATED.split("|"))
def test_a_set_of_letters_is_read(said: str) -> None:
    for gold in ("B, D", "BD", '["B", "D"]', "(B) and (D)", "#### B, D", r"\boxed{BD}", "D; B"):
        verdict = judge({"completion": said}, gold, 0, several=True)
        assert (verdict.outcome, verdict.extracted) == ("correct", "B, D")
    for gold in ("B, C", "BCD", '["B", "D", "E"]'):
        assert judge({"completion": said}, gold, 0, several=True).value == 0.0


NOT_IT = (
    "B|D|The answer is B|B or D|B/D|#### B or D|\\boxed{B} or \\boxed{D}|\\boxed{B} \\boxed{D}|bd|#### bd"
    "|B and not D|B, C, D"
    "|#### A, B #### B, D|The answers are B and C. The answers are B and D"
    "|The answer is B. The answers are B and D|The answers are B and D, because (C) is wrong"
    "|B\nD|The answers are not B and D|BBD|the band|||B and D or A"
)


@pytest.mark.parametrize("said", NOT_IT.split("|"))
def test_another_set_or_a_hedge_is_not_right(said: str) -> None:
    verdict = judge({"completion": said}, "B, D", 0, several=True)
    assert (verdict.value, verdict.outcome in ("wrong", "unparsed")) == (0.0, True)


NO_SETS = (("B, E", OPTIONS), ("[1, 2]", {}), ("[]", {}), ('["B", "x1"]', {}), ("bad", {}))


@pytest.mark.parametrize(("gold", "row"), NO_SETS)
def test_a_gold_that_is_no_set_is_an_error(gold: str, row: dict[str, list[str]]) -> None:
    assert judge({"completion": "B, D", **row}, gold, 0, several=True).outcome == "error"


def test_a_set_is_asked_for() -> None:
    assert judge({"completion": "B, D"}, "B, D", 0).outcome == "error"
    assert judge({"completion": "B, D", **OPTIONS}, "B, D", 0, several=True).value == 1.0
    assert judge({"completion": "B"}, '["B"]', 0, several=True).value == 1.0
    spec = resolve("choice", {"several": True})
    assert load(spec)({"completion": "The answers are A and C"}, "AC").value == 1.0


LETTERS = st.lists(st.sampled_from(string.ascii_uppercase), min_size=2, max_size=6, unique=True)


@given(stated=LETTERS, gold=LETTERS, joint=st.sampled_from((", ", " and ", "; ", " & ", "")))
def test_the_same_set_in_any_order_and_no_other(stated: list[str], gold: list[str], joint: str) -> None:
    said = f"The answers are {joint.join(stated)}."
    right = judge({"completion": said}, json.dumps(gold), 0, several=True).value
    assert right == float({*stated} == {*gold})
    assert letters_of(joint.join(stated)) == frozenset(each.lower() for each in stated)


@given(text=st.text(alphabet="ABD abd.,()\n#&or", max_size=60), gold=st.sampled_from(string.ascii_uppercase))
def test_a_single_letter_reads_as_before(text: str, gold: str) -> None:
    assert judge({"completion": text}, gold, 0, several=True) == judge({"completion": text}, gold, 0)


PIECES = "a, ;a and ;(a;( ;answers are ;answers are a, b ;#### ;#;\\boxed{;\\boxed{a} ;{;a\n;AB;, ;both ;are correct "


@pytest.mark.parametrize("piece", PIECES.split(";"))
def test_hostile_text_takes_linear_time(piece: str) -> None:
    began = time.process_time()
    text = (piece * 100_000)[:100_000]
    for said in (text, f"The answers are A, {text}", f"#### A and {text}"):
        judge({"completion": said, **OPTIONS}, "A, B", 0, several=True)
    assert time.process_time() - began < 3.0
