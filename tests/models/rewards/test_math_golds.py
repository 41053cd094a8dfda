"""The reward `math` on MATH's 5,000 golds: each is itself in every hand's writing, and none with another digit."""

import json
import random
import time
from pathlib import Path

import pytest

from gradus.models.rewards.judges import numeric, symbolic
from gradus.models.rewards.text import last_box, last_boxes
from tests.models.rewards.written_forms import FORMS, perturbed, rewritten

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the real data of ../shared/data is not here")
EVERY = 10
"""One gold in ten: `benchmarks/verdicts.py` takes all."""


def lines(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (SHARED / name).read_text().splitlines()]


def math(answer: str, gold: str) -> str:
    return symbolic.judge({"completion": f"so \\boxed{{{answer}}}"}, gold, 0).outcome


@pytest.fixture(scope="module")
def golds() -> list[str]:
    found = [last_box(row["solution"]) for row in lines("math/test.jsonl")]
    return [gold for gold in found[::EVERY] if gold]


@pytest.mark.slow
@needs_shared
def test_a_gold_is_itself_in_every_form(golds: list[str]) -> None:
    assert len(golds) == 5000 // EVERY
    pairs = [(gold, name, text) for gold in golds for name, text in rewritten(gold)]
    assert {name for _, name, _ in pairs} == set(FORMS)
    assert [(*pair, found) for pair in pairs if (found := math(pair[2], pair[0])) != "correct"] == []


@pytest.mark.slow
@needs_shared
def test_a_gold_with_another_digit_is_wrong(golds: list[str]) -> None:
    rng = random.Random(0)
    pairs = [(gold, text) for gold in golds if (text := perturbed(gold, rng))]
    assert len(pairs) > 0.9 * len(golds)
    assert [(*pair, found) for pair in pairs if (found := math(pair[1], pair[0])) != "wrong"] == []


@needs_shared
def test_a_gold_of_gsm8k_with_another_digit_is_wrong() -> None:
    rng = random.Random(0)
    for row in lines("gsm8k/test.jsonl"):
        gold = row["answer"].rpartition("#### ")[2]
        text = perturbed(gold, rng)
        assert text is not None
        completion = {"completion": f"#### {text}"}
        assert symbolic.judge(completion, gold, 0).outcome == "wrong", (gold, text)
        assert numeric.judge(completion, gold, 0).outcome == "wrong", (gold, text)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"440\text{ cm}^2", r"440\text{ cm}^4"),
        (r"\frac \pi4 + 2 - \sqrt2", r"\frac \pi4 + 2 - \sqrt5"),
        (r"\frac{1}{2004!}", r"\frac{5}{2004!}"),
        ("1200_7", "1200_9"),
        ("1200_7", "1200_{9}"),
        ("10^{-30}", "10^{-31}"),
    ],
)
def test_what_math_verify_alone_takes_for_equal(gold: str, answer: str) -> None:
    from math_verify import parse, verify

    assert verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}"))
    assert math(answer, gold) == "wrong"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"440\text{ cm}^2", "440"),
        (r"440\text{ cm}^2", r"440\text{ cm}^{2}"),
        (r"440\text{ cm}^2", r"440\text{ square cm}"),
        (r"\frac \pi4", r"\frac{\pi}{4}"),
        (r"\frac \pi4", r"\dfrac\pi4"),
        ("1200_7", "1200_{7}"),
        ("1200_7", "1200"),
        ("10^{-30}", "0.1^{30}"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("0.333333", r"\frac{1}{3}"),
        (r"\pi", "3.14159265"),
    ],
)
def test_what_is_equal_stays_equal(gold: str, answer: str) -> None:
    assert math(answer, gold) == "correct"


def test_white_space_is_taken_off_the_ends_in_linear_time() -> None:
    for text, left in (
        (" " * 200_000 + "x", "x"),
        ("x" + " " * 200_000 + "y", None),
        ("\\," * 100_000 + "x" + "~" * 100_000, "x"),
        ("\\," * 100_000, ""),
        ("\\, \\;~7\\! ~\\,", "7"),
        ("$ \\,7~$", "7"),
    ):
        started = time.process_time()
        assert symbolic._trim(text) == (text if left is None else left)
        assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        (r"\boxed{1} and \boxed{-2}.", ["1", "-2"]),
        (r"\boxed{0} so $\boxed{1}$, $\boxed{\frac{1}{2}}$ or $\boxed{3}$", ["1", r"\frac{1}{2}", "3"]),
        (r"\boxed{1} \quad \text{and} \quad \boxed{2}", ["1", "2"]),
        (r"first \boxed{1}, then \boxed{2}", ["2"]),
        (r"\boxed{a \boxed{b}}", [r"a \boxed{b}"]),
        (r"\boxed 5 , \boxed{6", ["5", ""]),
        ("none", []),
    ],
)
def test_boxes_that_stand_together(text: str, boxes: list[str]) -> None:
    assert last_boxes(text) == boxes


@pytest.mark.parametrize(
    ("gold", "completion", "outcome"),
    [
        ("1, -2", r"$x = \boxed{1}$ and $\boxed{-2}$", "correct"),
        (r"\boxed{1} and \boxed{-2}", r"\boxed{-2, 1}", "correct"),
        ("1", r"\boxed{1} or \boxed{-2}", "wrong"),
        ("-2", r"\boxed{1} or \boxed{-2}", "correct"),
        ("1, 2, 3", r"\boxed{1}, \boxed{2}", "wrong"),
        ("1, 2", r"\boxed{1}, \boxed{2}, \boxed{3}", "wrong"),
    ],
)
def test_several_boxes_are_a_list_for_a_gold_that_is_one(gold: str, completion: str, outcome: str) -> None:
    assert symbolic.judge({"completion": completion}, gold, 0).outcome == outcome
