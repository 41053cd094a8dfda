"""Worked solutions against sums done by hand and against Python's own arithmetic."""

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.sources.formats import UnusableRowError, reasoning, worked_solution

SIGNS = {"+": operator.add, "-": operator.sub}


@pytest.mark.parametrize(
    ("expression", "steps", "answer"),
    [
        ("12 + 5 - 3", ["12+5=17", "17-3=14"], "14"),
        ("4 - 9 + 2", ["4-9=-5", "-5+2=-3"], "-3"),
        ("-3 - 4", ["-3-4=-7"], "-7"),
        ("7", [], "7"),
        ("1+2", ["1+2=3"], "3"),
        ("  5  -  5  ", ["5-5=0"], "0"),
        ("9999999999 + 1", ["9999999999+1=10000000000"], "10000000000"),
    ],
)
def test_steps_worked_out_by_hand(expression: str, steps: list[str], answer: str) -> None:
    assert worked_solution(expression) == (steps, answer)


@pytest.mark.parametrize(
    "expression", ["", "   ", "x + 1", "1 * 2", "1 + ", "1 + -2", "1 2", "(1 + 2)", "1.5 + 2", "1 + 2 =", "1 + 2; 3"]
)
def test_anything_else_is_refused_by_name(expression: str) -> None:
    with pytest.raises(ValueError, match="is not a chain of sums"):
        worked_solution(expression)


@given(st.integers(-999, 999), st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 999)), max_size=8))
@settings(max_examples=50)
def test_every_step_is_true_and_goes_on_from_the_one_before(first: int, terms: list[tuple[str, int]]) -> None:
    steps, answer = worked_solution(" ".join([str(first), *(f"{sign} {number}" for sign, number in terms)]))
    total = first
    assert len(steps) == len(terms)
    for step, (sign, number) in zip(steps, terms, strict=True):
        before, total = total, SIGNS[sign](total, number)
        assert step == f"{before}{sign}{number}={total}"
    assert answer == str(total)


def item(expression: str, answer: str) -> dict[str, object]:
    metadata = {"source_dataset": "chain_sum", "expression": expression}
    return {"question": f"{expression} =", "answer": answer, "metadata": metadata}


def test_a_row_has_its_number_of_operations_as_domain() -> None:
    found = reasoning(item("4 + 3 - 5", "2"))
    assert (found["question"], found["answer"], found["solution"], found["domain"]) == (
        "4 + 3 - 5 =",
        "2",
        "4+3=7\n7-5=2",
        "chain_sum/2",
    )


def test_a_generator_that_contradicts_its_own_expression_is_refused() -> None:
    for odd in (item("4 + 3 - 5", "3"), item("4 * 3", "12")):
        with pytest.raises(UnusableRowError, match="not an item of chain_sum"):
            reasoning(odd)
