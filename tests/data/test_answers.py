r"""The form in which answers are counted: which writings are one answer, which stay apart, and that it has itself."""

import json
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradus.data.answers import answer_key, number

SAME = [
    ["0.5", "0.50", ".5", "1/2", r"\frac{1}{2}", r"$\dfrac12$", r"\boxed{0.5}", "２/４", "0.5."],
    ["1200", "1,200", "1 200", "1{,}200", "$1200", r"\boxed{1,\!200}"],
    ["-3", "−3", "-3.0", r"\boxed{-3}"],
    ["50%", "50 %", r"50\%", r"50.0 \%", r"\boxed{50\%}"],
    ["Paris", "paris", "PARIS.", r"\text{Paris}", r"\boxed{\text{paris}}", " Paris "],
    ["(b)", "(B)", "B.", "b)", r"\text{(B)}"],
    ["(x+1)", r"\left( x + 1 \right)", "$(x +1)$"],
    [r"\frac{x}{2}", r"\dfrac{x}{2}", r"\tfrac{x}{2}", r"\frac{x} {2}"],
    ['{"a": [2], "b": true}', '{"b":true,"a":[2.0]}', '{ "a" : [2], "b" : true }'],
    ["well-known fact", "Well-Known  fact."],
]


@pytest.mark.parametrize("texts", SAME, ids=lambda texts: texts[0])
def test_one_answer_in_several_writings_has_one_form(texts: list[str]) -> None:
    assert len({answer_key(text) for text in texts}) == 1


def test_other_answers_have_other_forms() -> None:
    apart = [texts[0] for texts in SAME]
    apart += ["x", "X", "n", "5", "50", "0.05", "(0.5", "12+3", "1 2+3", "a b", "ab", "[1, 2)", "(1, 2]", '["2"', "b"]
    apart += [r"\leftarrow x", r"\text{a} and \text{b}", "3 : 4", "4 : 3", "1/3", "0.333333333333333333", "5!", "5"][
        :-1
    ]
    keys = [answer_key(text) for text in apart]
    assert len(set(keys)) == len(apart), keys


def test_a_power_is_no_longer_number() -> None:
    assert number("2²") is None
    assert answer_key("x²") == answer_key("x^2") != answer_key("x2")


def test_two_texts_are_not_one_that_is_wrapped() -> None:
    assert answer_key(r"\text{a} and \text{b}") == r"\text{a}and\text{b}"
    assert answer_key(r"\text{a_{1}}") == "a_{1}"


def test_nothing_has_no_form() -> None:
    assert answer_key(None) is None
    assert answer_key(" ") == ""


WRITTEN = st.one_of(
    st.text(max_size=40),
    st.text("0123456789-+/*^=.,%$ (){}[]\\abAB", max_size=30),
    st.builds(
        "{0}{1}{2}".format,
        st.sampled_from(["", r"\boxed{", r"\text{", r"\boxed{\text{"]),
        st.sampled_from(["x + 1", "Paris", "0.50", "(b)", "B.", "3 %", r"\frac{4}{8}", r"\$5", '{"b": 1, "a": 2}']),
        st.sampled_from(["", "}", "}}"]),
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda i: st.lists(i, max_size=3)
    ).map(json.dumps),
)


@given(WRITTEN)
@example("\\$5")
@example("e$\u0301")
@example('["\\u0024"]')
@example("((a))")
def test_a_form_is_its_own_form(text: str) -> None:
    key = answer_key(text)
    assert key is not None
    assert answer_key(key) == key


@given(
    st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6), st.sampled_from(["{}", "\\boxed{{{}}}"])
)
def test_numbers_have_one_form_if_and_only_if_they_are_equal(one: Fraction, other: Fraction, written: str) -> None:
    keys = [answer_key(written.format(value)) for value in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assert number(str(keys[0])) == one


@pytest.mark.parametrize("unit", ["\\boxed{", "{", "[", "(", " ", "$", "\\left", "a ", "1,", "{}", "-", "\\!"])
def test_a_long_answer_takes_no_long_time(unit: str) -> None:
    assert answer_key(unit * 100_000) is not None
    assert answer_key(unit * (400 // len(unit))) is not None
