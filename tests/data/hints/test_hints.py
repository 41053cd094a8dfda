"""Hints: prefixes at step boundaries that never reveal the answer, checked by an independent reading."""

import json
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.answers import normalised_gold, number
from gradus.data.hints import hints_of, states_early
from gradus.data.hints.leaks import leaks
from gradus.data.hints.strategies.prefix import prefix
from gradus.data.hints.strategies.sub_questions import sub_questions
from gradus.data.hints.strategies.tiers import tiers
from gradus.data.sources.formats import worked_solution


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,200", Fraction(1200)),
        ("1200.0", Fraction(1200)),
        (r"\frac{2400}{2}", Fraction(1200)),
        (r"-\frac12", Fraction(-1, 2)),
        ("−7", Fraction(-7)),
        ("١٢", Fraction(12)),
        ("081", Fraction(81)),
        ("$3.50", Fraction(7, 2)),
        ("6/4", Fraction(3, 2)),
        ("1/0", None),
        ("12 apples", None),
        ("x+1", None),
        ("1,20", None),
    ],
)
def test_numbers_are_read_exactly(text: str, value: Fraction | None) -> None:
    assert number(text) == value


def test_golds_are_normalised() -> None:
    golds = {"1,200": "1200", "081": "81", "+5": "5", "2.50": "2.5", "6/4": "1.5", "1/3": "1/3", " x  + 1": "x + 1"}
    assert {text: normalised_gold(text) for text in golds} == golds


@pytest.mark.parametrize("text", ["1,200", "1200", "1200.0", r"\frac{2400}{2}", "2400/2", "the total is $1,200."])
def test_every_way_to_write_the_answer_is_a_leak(text: str) -> None:
    assert leaks(f"so it is {text}", "1200", "How many?")
    assert not leaks(f"so it is {text}", "1200", "There are 1,200 of them")
    assert not leaks(f"so it is {text}", "12", "How many?")


def test_words_leak_as_words() -> None:
    assert leaks("they walk East then", "east", "Where?")
    assert not leaks("they walk west then", "east", "Where?")


def test_levels_show_more_and_more_whole_steps_and_never_all() -> None:
    problem = {"problem_id": "p", "question": "8 + 5 + 7 - 1 + 3 =", "answer": "22", "extra": None}
    steps, answer = worked_solution("8 + 5 + 7 - 1 + 3")
    assert (steps, answer) == (["8+5=13", "13+7=20", "20-1=19", "19+3=22"], "22")
    hints = hints_of({**problem, "solution": "\n".join(steps)}, prefix, (0.25, 0.5, 0.75, 1.0))[0]
    assert [hint.text for hint in hints] == [
        "8+5=13\n",
        "8+5=13\n13+7=20\n",
        "8+5=13\n13+7=20\n20-1=19\n",
        "8+5=13\n13+7=20\n20-1=19\n",
    ]


@given(st.lists(st.integers(0, 99), min_size=3, max_size=8), st.data())
@settings(max_examples=50)
def test_no_prefix_reveals_the_answer(terms: list[int], data: st.DataObject) -> None:
    signs = data.draw(st.lists(st.sampled_from("+-"), min_size=len(terms) - 1, max_size=len(terms) - 1))
    expression = str(terms[0]) + "".join(f" {s} {t}" for s, t in zip(signs, terms[1:], strict=True))
    steps, answer = worked_solution(expression)
    problem = {"problem_id": "p", "question": "?", "answer": answer, "solution": "\n".join(steps), "extra": None}
    for hint in hints_of(problem, prefix, (0.25, 0.5, 0.75))[0]:
        assert answer not in re.findall(r"-?\d+", hint.text)


def test_a_strategy_that_states_the_answer_is_not_believed() -> None:
    problem = {"problem_id": "p", "question": "3 + 4 =", "answer": "7", "solution": None}
    told, reason = hints_of(problem, lambda problem, fraction: "it is 7" if fraction > 0.5 else "add them", (0.5, 1.0))
    assert ([(hint.level, hint.text) for hint in told], reason) == ([(1, "add them")], "")
    assert hints_of(problem, prefix, (0.5,)) == ([], "no worked solution")
    assert hints_of({**problem, "solution": "3+4=7"}, prefix, (0.5,)) == ([], "a single step")
    assert hints_of({**problem, "answer": None}, prefix, (0.5,)) == ([], "no gold answer")
    assert hints_of(problem, lambda problem, fraction: "7", (0.5,)) == ([], "every hint would reveal the answer")
    assert hints_of(problem, lambda problem, fraction: None, (0.5,)) == ([], "the strategy has no hint")


def test_sub_questions_are_shown_without_their_answers() -> None:
    solution = "How many eggs are sold? ** 16 - 3 - 4 = 9\nHow much are 9 eggs at 2? ** 9 * 2 = 18\nWhat is 18? ** It."
    problem = {"problem_id": "p", "question": "16 eggs?", "answer": "18", "solution": solution}
    first, both = "How many eggs are sold?\n", "How many eggs are sold?\nHow much are 9 eggs at 2?\n"
    assert [hint.text for hint in hints_of(problem, sub_questions, (0.3, 0.6, 1.0))[0]] == [first, both, both]
    assert hints_of({**problem, "solution": "9 * 2 = 18"}, sub_questions, (1.0,)) == (
        [],
        "no sub-questions in its solution",
    )


def test_tiers_go_from_knowledge_over_a_plan_to_the_solution_and_end_before_a_part_that_states_the_answer() -> None:
    parts = [["Sums commute."], ["Add the tens.", "Then the ones."], ["20 + 10 = 30", "30 + 7 = 37", "So 37."]]
    problem = {
        "problem_id": "p",
        "question": "?",
        "answer": "37",
        "solution": None,
        "extra": json.dumps({"tiers": parts}),
    }
    hints = hints_of(problem, tiers, (1 / 6, 0.5, 4 / 6, 1.0))[0]
    plan = "Sums commute.\nAdd the tens.\nThen the ones.\n"
    assert [hint.text for hint in hints] == ["Sums commute.\n", plan, *[f"{plan}20 + 10 = 30\n"] * 2]
    assert hints_of({**problem, "extra": None}, tiers, (1.0,)) == ([], "the strategy has no hint")


@pytest.mark.parametrize("golds", [[], ["8"], ["east", 8]])
def test_a_hint_states_no_gold_of_several(golds: list[object]) -> None:
    extra = json.dumps({"golds": golds}) if golds else None
    problem = {"problem_id": "p", "question": "Which?", "answer": "3", "extra": extra}
    problem["solution"] = "it may be 8\nor not\nso it is 3"
    hints, _ = hints_of(problem, lambda *_: "it may be 8", (1.0,))
    assert [hint.text for hint in hints] == ([] if golds else ["it may be 8"])
    assert states_early(problem) is bool(golds)
