"""The three readings of a number accept different texts, but never read one text as two values."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradus.data.answers import number
from gradus.models.rewards.judges.numeric import read_number
from gradus.models.rewards.judges.symbolic import compare_plain

_DIGITS = st.integers(0, 10**7).map(str)
_GROUPED = st.integers(0, 10**12).map("{:,}".format)
_NUMERALS = st.one_of(
    _DIGITS,
    _GROUPED,
    st.tuples(_DIGITS, _DIGITS).map(".".join),
    st.tuples(_DIGITS, _DIGITS).map("/".join),
    st.tuples(st.sampled_from(["", "d", "t"]), _DIGITS, _DIGITS).map(lambda t: rf"\{t[0]}frac{{{t[1]}}}{{{t[2]}}}"),
)
_TEXTS = st.tuples(
    st.sampled_from(["", "-", "\u2212", "$", "-$"]), _NUMERALS, st.sampled_from(["", ".", " ", "%"])
).map("".join)


@given(_TEXTS)
@example("1,234.50")
@example("-3/4")
@example(r"-\frac{3}{4}")
@example("3/0")
@settings(max_examples=300)
def test_two_readings_of_a_text_are_one_value(text: str) -> None:
    gold, found = number(text), read_number(text)
    assert gold is None or found is None or gold == found
    for value in {gold, found} - {None}:
        assert value is not None
        assert compare_plain(text, f"{value.numerator}/{value.denominator}") in (True, None)
        assert compare_plain(text, f"{value.numerator + value.denominator}/{value.denominator}") in (False, None)
