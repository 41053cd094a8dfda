"""The reward `quantity`: definitions of units by hand, written forms, hedges, and text that costs time."""

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.rewards.judges.quantity import judge, read_quantity

# Left and right are equal by definition of the units (SI Brochure; NIST SP 811, appendix B).
EQUAL = (
    "1 inch=2.54 cm|1 mile=1609.344 m|90 km/h=25 m/s|1 kWh=3.6 MJ|1 L=1000 cm^3|1 atm=101325 Pa|0 °C=273.15 K"
    "|212 °F=100 °C|1 cal=4.184 J|1 lb=453.59237 g|34%=0.34|2 hours=120 min|1 N=1 kg m/s^2|1 eV=1.602176634e-19 J"
    "|60 miles per hour=26.8224 m/s|1 mol/L=1000 mol/m^3|1 J/(kg K)=0.001 kJ/(kg*K)"
)


@pytest.mark.parametrize("pair", EQUAL.split("|"))
def test_units_are_converted_by_their_definitions(pair: str) -> None:
    one, other = pair.split("=")
    for said, gold in ((one, other), (other, one)):
        assert judge({"completion": f"#### {said}"}, gold, 0).outcome == "correct"
        assert judge({"completion": f"#### 1{said}"}, gold, 0).outcome == "wrong"


WRITTEN = (
    r"\boxed{3.0\times 10^{8}\ \mathrm{m\,s^{-1}}}|\boxed{3 \cdot 10^8 \text{ m/s}}|#### 3e8 m/s|#### 300,000 km/s"
    r"|so it is 300000 km per second.|$\boxed{300{,}000\,\frac{\text{km}}{\text{s}}}$|\boxed{3×10^{5} km⋅s⁻¹}"
    r"|#### **3e8 m s^-1**|1 m, then 3e8 m/s|\boxed{300\ \mathrm{Mm}\cdot\mathrm{s}^{-1}}|#### 600000000/2 m/s"
)


@pytest.mark.parametrize("completion", WRITTEN.split("|"))
def test_written_forms(completion: str) -> None:
    found = judge({"completion": completion}, "3e8 m/s", 0)
    assert (found.value, found.outcome) == (1.0, "correct")


@pytest.mark.parametrize(
    "completion",
    [
        *("#### 5 m or 6 m", "#### 5 m 6 m", "#### 5 apples", "#### 5 ft 3 in", "#### 5 m^99"),
        *("#### 5 m^9^9^9", "#### 5 (m^9)^9", "#### 2+3 m", "#### 5 m.__class__", "#### 5 \x00meters!", "no", ""),
        *("\\boxed{5 m", "<think>5 m", "#### 1/0 m", f"#### {'1' * 5000} m"),
    ],
)
def test_a_hedge_and_whatever_is_no_quantity_score_nothing(completion: str) -> None:
    found = judge({"completion": completion}, "5 m", 0)
    assert (found.value, found.outcome) == (0.0, "unparsed")


def test_case_and_dimension_count() -> None:
    assert judge({"completion": "#### 5 MW"}, "5 mW", 0).outcome == "wrong"
    assert judge({"completion": "#### 5 kg"}, "5 km", 0).outcome == "wrong"
    assert judge({"completion": "#### 5 km"}, "5", 0).outcome == "wrong"


def test_a_bare_number_has_the_unit_of_the_gold_if_that_is_asked_for() -> None:
    assert judge({"completion": "#### 5"}, "5 km", 0).outcome == "wrong"
    assert judge({"completion": "#### 5"}, "5 km", 0, bare=True).outcome == "correct"
    assert judge({"completion": "#### 5 m"}, "5 km", 0, bare=True).outcome == "wrong"
    assert judge({"completion": "#### 100%"}, "1 km", 0, bare=True).outcome == "wrong"


def test_the_tolerance_is_relative_and_in_the_unit_of_the_gold() -> None:
    assert judge({"completion": "#### 180 degrees"}, "3.14159 rad", 0).outcome == "correct"
    assert judge({"completion": "#### 1010 m"}, "1 km", 0, tolerance=0.01).outcome == "correct"
    assert judge({"completion": "#### 1011 m"}, "1 km", 0, tolerance=0.01).outcome == "wrong"
    assert judge({"completion": "#### 1000.0001 m"}, "1 km", 0, tolerance=0.0).outcome == "wrong"


def test_a_gold_that_is_no_quantity_is_an_error() -> None:
    found = judge({"completion": "#### 5"}, "5 apples", 0)
    assert (found.value, found.outcome) == (None, "error")
    assert "'5 apples' is not one number with a unit" in found.error


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4), st.sampled_from(["m", "km/h", "J"]))
def test_a_fraction_is_read_exactly(value: Fraction, unit: str) -> None:
    found = read_quantity(f"{value.numerator}/{value.denominator} {unit}")
    assert found is not None
    assert found.magnitude == value
    assert judge({"completion": f"#### {value} {unit}"}, f"{value} {unit}", 0, tolerance=0.0).outcome == "correct"


@given(st.text(max_size=60))
def test_of_any_text_only_a_number_can_be_right_or_wrong(text: str) -> None:
    found = judge({"completion": text}, "5 m", 0)
    assert found.outcome in (("correct", "wrong", "unparsed") if any(map(str.isdecimal, text)) else ("unparsed",))
    assert found.value == float(found.outcome == "correct")


@pytest.mark.parametrize(
    "unit", ["^" + " " * 50_000, "\\frac{" * 10_000, "m " * 25_000, "(m) " * 12_000, "m/" * 25_000]
)
def test_time_is_linear_in_the_length_of_a_hostile_text(unit: str) -> None:
    judge({"completion": "5 m"}, "5 m", 0)
    started = time.process_time()
    assert judge({"completion": f"#### 5 {unit}"}, "5 m", 0).outcome == "unparsed"
    assert judge({"completion": f"5 {unit}" * 2}, "5 m", 100_000).value in (0.0, 1.0)
    assert time.process_time() - started < 5


def test_pi_is_a_fraction_of_fifty_digits() -> None:
    assert math.isclose(read_quantity("180 degrees").to("rad").magnitude, math.pi, rel_tol=1e-15)
