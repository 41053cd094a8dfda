"""BLEU by hand: counted runs, brevity, words."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.rewards.judges.bleu import bleu, judge_bleu, words

CAT = "the cat sat on the mat"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (CAT, 1.0),
        # the the the the the the the: 2 of 7 words, none of 6, 5, 4 runs (Papineni's example of clipping).
        ("the the the the the the the", (3 / 8 * 1 / 7 * 1 / 6 * 1 / 5) ** 0.25),
        # the cat sat: 3 of 3, 2 of 2, 1 of 1, no run of 4; brevity exp(1 - 6/3).
        ("the cat sat", math.exp(-1)),
        # on the cat sat: 4 of 4 words, 3 of 3 (on the, the cat, cat sat), 1 of 2, 0 of 1; brevity exp(1 - 6/4).
        ("on the cat sat", math.exp(1 - 6 / 4) * (5 / 5 * 4 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        ("dog", math.exp(-5) * (1 / 2) ** 0.25),
        ("", 0.0),
    ],
)
def test_shares_of_runs_as_counted(said: str, expected: float) -> None:
    assert bleu(said.split(), CAT.split()) == pytest.approx(expected, rel=1e-12)
    verdict = judge_bleu({"completion": said}, CAT, 1000)
    assert verdict.value == pytest.approx(expected, rel=1e-12)
    assert (verdict.outcome, verdict.abstains) == ("", False)  # correct_at may make a verdict of it


def test_only_what_follows_the_thinking_is_judged() -> None:
    assert judge_bleu({"completion": f"<think>a dog</think>{CAT}"}, CAT, 1000).value == pytest.approx(1.0)
    assert judge_bleu({"completion": f"<think>{CAT}"}, CAT, 1000).value == 0.0
    assert judge_bleu({"completion": CAT}, " ", 1000).error == "the reference ' ' has no words"


def test_words_are_those_of_13a() -> None:
    assert words('He paid $1,200.50 (in 2-3 parts), "so" A&amp;B.') == [
        *(
            "He",
            "paid",
            "$",
            "1,200.50",
            "(",
            "in",
            "2",
            "-",
            "3",
            "parts",
            ")",
            ",",
            '"',
            "so",
            '"',
            "A",
            "&",
            "B",
            ".",
        ),
    ]
    assert words("well-known state-\nment.\n") == ["well-known", "statement", "."]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_a_share_between_0_and_1_that_is_1_for_the_reference_alone(said: list[str], reference: list[str]) -> None:
    assert 0 <= bleu(said, reference) <= 1 + 1e-12
    assert bleu(reference, reference) == pytest.approx(1.0)
