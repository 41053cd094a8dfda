"""No hint of a strategy that does not say that it reveals states the gold: by a reading of the test's own."""

import ast
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.components.registry import ROOT, components, function_of
from gradus.data.answers import number
from gradus.data.hints import hints_of
from gradus.data.hints.leaks import leaks
from gradus.data.hints.written import expressions_in, words_in
from gradus.data.records import Problem
from gradus.data.sources import formats

REAL = Path(__file__).parents[3].parent / "shared" / "data"
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
SMALL = [*ONES.split(), "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SIGNS: Mapping[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def in_words(value: int) -> str:
    if value == 100:
        return "one hundred"
    tens, ones = divmod(value, 10)
    return SMALL[value] if value < 20 else TENS[tens] + (f"-{SMALL[ones]}" if ones else "")


WORDS = {in_words(value): Fraction(value) for value in range(101)}
WORD = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(WORDS, key=len, reverse=True))})(?!\w)")


def read(text: str, *, expressions: bool) -> set[Fraction]:
    """Numbers in digits, in words and, if asked, as the value of a chain of numbers and signs."""
    body = re.sub(r"(?<=\d),(?=\d{3})", "", text.replace("$", ""))
    found = {Fraction(digits) for digits in re.findall(r"(?<![\d.])-?\d+(?:\.\d+)?(?!\.?\d)", body)}
    found |= {abs(value) for value in found} if expressions else {-value for value in found}  # x^2-8 states both
    found |= {WORDS[word] for word in WORD.findall(body.lower())}
    for chain in re.findall(r"(?<![\d.\\%^-])\d[\d.]*(?: *[-+*/] *\d[\d.]*)+(?![\d^(%])", body) if expressions else ():
        try:
            found.add(evaluated(ast.parse(chain.strip("."), mode="eval").body))
        except (SyntaxError, ZeroDivisionError, ValueError):
            continue
    return found


def evaluated(node: ast.expr) -> Fraction:
    match node:
        case ast.BinOp(left=left, op=sign, right=right):
            return SIGNS[type(sign)](evaluated(left), evaluated(right))
        case ast.Constant(value=value):
            return Fraction(str(value))
        case _:
            raise ValueError(node)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (REAL / name).read_text(encoding="utf-8").splitlines()]


def bundled() -> list[Problem]:
    folder = ROOT / "data" / "samples"
    return [row for name in ("train", "heldout") for row in pq.read_table(folder / f"{name}.parquet").to_pylist()]


def gsm8k() -> list[Problem]:
    return [formats.gsm8k(row) for row in lines("gsm8k/train.jsonl")]


def socratic() -> list[Problem]:
    return [formats.gsm8k(row) for row in lines("gsm8k/test_socratic.jsonl")]


def mathematics() -> list[Problem]:
    return [formats.math_boxed(row) for row in lines("math/test.jsonl")]


def competition() -> list[Problem]:
    table = pq.read_table(REAL / "hints" / "deepscaler_val200_hints.parquet")
    return [formats.hints(row) for row in table.to_pylist()]


def strategies() -> Iterable[tuple[str, Callable[..., Any]]]:
    return [(name, function_of(each)) for name, each in components("hint").items() if not each.reveals]


SOURCES = [
    (bundled, {"prefix": 847}),
    (gsm8k, {"prefix": 7344}),
    (socratic, {"prefix": 1295, "sub_questions": 1319}),
    (mathematics, {"prefix": 4135}),
    (competition, {"tiers": 177, "knowledge": 179}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "hinted"), SOURCES, ids=lambda value: getattr(value, "__name__", ""))
def test_no_hint_of_real_problems_states_the_gold_in_any_written_form(
    source: Callable[[], list[Problem]], hinted: dict[str, int]
) -> None:
    if source is not bundled and not REAL.is_dir():
        pytest.skip("the shared real data is not beside this checkout")
    found = dict.fromkeys(hinted, 0)
    problems = [{**problem, "problem_id": str(at)} for at, problem in enumerate(source())]
    for name, strategy in strategies():
        for problem in problems:
            hints, _ = hints_of(problem, strategy, (0.4, 0.8))
            if name in found:
                found[name] += bool(hints)
            gold, question = number(problem["answer"] or ""), problem["question"] or ""
            for hint in hints:
                assert gold is None or gold not in read(hint.text, expressions=True) - read(question, expressions=False)
    assert found == hinted


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the shared real data is not beside this checkout")
def test_the_last_part_of_most_competition_hints_states_the_gold_and_levels_are_cumulative() -> None:
    leaking, strategy = 0, function_of(components("hint")["tiers"])
    for problem in competition():
        parts = [part for tier in json.loads(problem["extra"] or "{}")["tiers"] for part in tier]
        leaking += leaks(parts[-1], problem["answer"] or "", problem["question"] or "")
        texts = [hint.text for hint in hints_of(problem, strategy, [level / 12 for level in range(1, 13)])[0]]
        assert all(more.startswith(less[:-1]) for less, more in itertools.pairwise(texts))
    assert leaking == 161


FORMS: Mapping[str, Callable[[int, int], str]] = {
    "digits": lambda gold, _: str(gold),
    "commas": lambda gold, _: f"{gold:,}",
    "decimals": lambda gold, _: f"{gold}.00",
    "fraction": lambda gold, part: f"{gold * part}/{part}",
    "latex": lambda gold, part: rf"\frac{{{gold * part}}}{{{part}}}",
    "words": lambda gold, _: in_words(gold) if gold <= 100 else str(gold),
    "sum": lambda gold, part: f"{gold - part} + {part}",
    "product": lambda gold, part: rf"{part} \times {Fraction(gold, part)}",
    "parentheses": lambda gold, part: f"2 * ({gold + part} - {part}) - {gold}",
    "percent": lambda gold, part: f"50% of {2 * gold}",
    "money": lambda gold, part: f"${gold + part} - ${part}",
}


@given(st.sampled_from(sorted(FORMS)), st.one_of(st.integers(3, 100), st.integers(101, 99_999)), st.integers(2, 9))
@settings(max_examples=150)
def test_a_text_with_the_gold_in_any_written_form_is_never_a_hint(form: str, gold: int, part: int) -> None:
    said = f"So we find {FORMS[form](gold, part)} of them, and stop."
    assert leaks(said, str(gold), "How many?"), said
    problem: dict[str, Any] = {
        "problem_id": "p",
        "question": "How many?",
        "answer": str(gold),
        "solution": f"Begin.\n{said}\nGo on.\nEnd.",
        "extra": json.dumps({"tiers": [["Begin."], [said, "Go on."]]}),
    }
    for name, strategy in strategies():
        texts = [hint.text for hint in hints_of(problem, strategy, (0.5, 1.0))[0]]
        assert all(said not in text for text in texts)
        if name in ("prefix", "tiers"):
            assert texts == ["Begin.\n", "Begin.\n"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("16-3-4=9", {"16-3-4": 9}),
        (r"2 \times (3 + 4)", {"3+4": 7, "2*(3+4)": 14}),
        ("1 1/2 and 1½ and $1\\frac12$", {"1+1/2": 1.5, "1+((1)/(2))": 1.5, "(1)/(2)": 0.5}),
        ("2^{10}, 2**3, 3²", {"2^10": 1024, "2^3": 8, "3^2": 9}),
        ("- 3 * 4 is a point of a list", {"3*4": 12}),
        ("3/0, 9^99, 2*(3+4, 5 -", {"3+4": 7}),
    ],
)
def test_expressions_have_exact_values(text: str, values: dict[str, float]) -> None:
    assert {name: float(value) for name, value in expressions_in(text)} == values


def test_words_are_numbers_up_to_a_hundred() -> None:
    assert [int(value) for value in words_in("Twenty-four, a hundred, seventeen and ninety nine; someone")] == [
        *(24, 100, 17, 99)
    ]


def test_what_the_question_states_is_no_leak_and_what_it_leaves_to_compute_is_one() -> None:
    assert not leaks("take the three of them", "3", "Three boys come.")
    assert not leaks("first find 3 + 4 there", "7", "What is 3 + 4?")
    assert leaks("it is 1200", "1200", "What is 2400/2?")
    assert leaks("they go east", "east", "Where does the astronaut go?")
    assert leaks(r"the angle is 180^\circ - 60^\circ = 120", r"120^\circ", "Which angle?")


@given(st.text(st.sampled_from("0123456789+-*/^()%.$ \\{}x½fraco-\n"), max_size=300))
@settings(max_examples=100)
def test_any_text_is_read(text: str) -> None:
    assert isinstance(leaks(text, "7", text[::-1]), bool)


@pytest.mark.parametrize("chain", ["*".join(["9^64"] * 500), "+".join(f"1/{n}^9" for n in range(2, 900))])
def test_a_chain_whose_value_has_no_bounds_is_read_in_parts(chain: str) -> None:
    values = [value for _, value in expressions_in(chain)]
    assert values
    assert max(len(str(value)) for value in values) < 10_000  # as a whole more than 30,000
    assert leaks(f"{chain} and then 30 * 40", "1200", "How many?")
