"""R^3 by hand: relevance by counts of words, the length of an answer, and its repetitions."""

import math
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.rewards import resolve
from gradus.models.rewards.judges.texts.relevance import cosine, distinct, judge_relevance

MANY = 100_000


def test_relevance_to_the_question_counts_with_length_and_without_repetitions() -> None:
    # Question: cats 1, eat 2; said: cats 2, eat 1, fish 1: 4 / sqrt(5 * 6). Five pieces; three runs, all different.
    row = {"completion": "<think>x</think>Cats eat fish, cats", "question": "cats eat EAT"}
    assert judge_relevance(row, None, MANY, unit=10.0).value == pytest.approx(4 / math.sqrt(30) * 5 / 10)
    # a b a b a b: counts 3 and 3 against 1 and 0: 1 / sqrt(2). Six pieces; of four runs two differ.
    row = {"completion": "a b a b a b", "messages": [{"content": "x"}, {"content": "a"}]}
    assert judge_relevance(row, " ", MANY).value == pytest.approx(1 / math.sqrt(2) * 6 / 100 * 2 / 4)


def test_relevance_to_a_reference_does_not_count_the_length() -> None:
    # Said and wanted share two words of three and four, once each; 2 / sqrt(12) of at most 512 / 100.
    row = {"completion": "feles hic mare", "question": "cat"}
    assert judge_relevance(row, "Feles amat hic urbs.", MANY).value == pytest.approx(5.12 * 2 / math.sqrt(12))
    assert judge_relevance(row, "Feles amat hic urbs.", MANY, longest=50.0, unit=25.0).value == pytest.approx(
        2 * 2 / math.sqrt(12)
    )
    # Said twice: the cosine stays, and of the four runs of six words three differ.
    row = {"completion": "feles hic mare feles hic mare", "question": "cat"}
    assert judge_relevance(row, "Feles amat hic urbs.", MANY).value == pytest.approx(5.12 * 2 / math.sqrt(12) * 3 / 4)
    right = {"completion": "urbs hic amat feles", "question": "cat"}
    assert judge_relevance(right, "Feles amat hic urbs.", MANY).value == pytest.approx(5.12)
    assert judge_relevance(row, "Feles amat hic urbs.", MANY, query="open").value == 0.0


def test_an_empty_answer_is_worth_nothing_and_a_row_without_words_is_an_error() -> None:
    for said in ("", "...", "<think>cat", "dog"):
        verdict = judge_relevance({"completion": said, "question": "cat"}, None, MANY)
        assert (verdict.value, verdict.outcome) == (0.0, "")
    assert judge_relevance({"completion": "x"}, None, MANY).outcome == "error"
    assert judge_relevance({"completion": "x", "question": "x"}, "?!", MANY).error == "the reference has no words"
    assert judge_relevance({"completion": "x", "question": "x"}, "", MANY, query="closed").outcome == "error"


WORDS = st.lists(st.sampled_from("abc"), max_size=9)


@given(WORDS, WORDS)
def test_a_cosine_is_even_and_a_share_has_bounds(one: list[str], other: list[str]) -> None:
    first, second = Counter(one), Counter(other)
    assert cosine(first, second) == cosine(second, first)
    assert 0.0 <= cosine(first, second) <= 1.0
    assert cosine(first, first) == pytest.approx(float(bool(one)))
    assert 0.0 < distinct(one) <= 1.0


@given(text=st.text(max_size=80), gold=st.text(max_size=40))
def test_any_text_is_judged(text: str, gold: str) -> None:
    verdict = judge_relevance({"completion": text, "question": "q"}, gold, MANY)
    assert verdict.value is None if verdict.outcome == "error" else 0.0 <= (verdict.value or 0.0) <= 5.12


@pytest.mark.parametrize("piece", ["a", "a ", "a.", "!?", "\u202e", "<think>", "</think>", "\n", "\x00", "é"])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    def seconds(chars: int) -> float:
        began = time.process_time()
        judge_relevance({"completion": (piece * chars)[:chars], "question": "a"}, None, 0)
        return time.process_time() - began

    assert seconds(400_000) < 2.0


def test_it_is_registered_and_reads_the_question() -> None:
    spec = resolve("relevance", {"query": "open"})
    assert (spec.verifier, spec.needs_gold, spec.columns) == ("relevance@1", False, ("question", "messages"))
