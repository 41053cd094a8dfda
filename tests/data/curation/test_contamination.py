"""Decontamination: runs of words by hand, and against the sets of word n-grams of lm-evaluation-harness's procedure."""

import string
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradus.data.curation.overlap as module
from gradus.data.curation.candidates import candidates
from gradus.data.curation.filters.contamination import decontaminated
from gradus.data.curation.overlap import contaminated, texts_of
from gradus.data.errors import BadInputError

ASKED = "Ann has seven red apples and gives three of them to her brother"  # 13 words


def shared(texts: list[str | None], evaluated: list[str | None], **settings: int) -> list[bool]:
    return contaminated(pa.array(texts, pa.string()), pa.array(evaluated, pa.string()), **settings).tolist()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Today {ASKED.upper()}, who is glad.", True),
        ("Ann has: seven red (apples) -- and gives\n\tthree of them to her brother's", False),  # brothers
        ("Ann has: seven red (apples) -- and gives\n\tthree of them to her “brother”", True),
        ("Ann has seven red apples and gives three of them to her sister", False),  # 12 words in a row
        ("has seven red apples and gives three of them to her brother Tom", False),
        (f"{ASKED[:-8]} younger brother", False),
        ("What is 5 - 3?", True),
        ("what  is 5-3 ?", True),
        ("What is 5 + 3?", False),
        ("", False),
        ("?!", False),
        (None, False),
    ],
)
def test_thirteen_words_in_a_row_or_the_same_text(text: str | None, found: bool) -> None:
    evaluated = [f"{ASKED}. How many are left?", "What is 5 - 3?", "", None]
    assert shared([text], evaluated) == [found]
    assert shared([text, "so it is"], [*reversed(evaluated), *evaluated]) == [found, False]


@pytest.mark.parametrize("num_words", range(1, 14))
def test_training_texts_of_few_words_alone_are_compared_too(num_words: int) -> None:
    text = " ".join(ASKED.split()[:num_words])
    assert shared([text], [f"{ASKED}. How many are left?"]) == [num_words == 13]
    assert shared([text], [text]) == [True]


def test_a_run_does_not_go_from_one_text_into_the_next() -> None:
    halves: list[str | None] = [ASKED[:30], ASKED[30:]]
    assert shared(halves, [ASKED]) == [False, False]
    assert shared([ASKED], halves) == [False]


def test_a_run_of_more_problems_than_ten_is_a_template() -> None:
    head = "Answer with the last number of the sum that stands below this line here"  # 14 words
    texts: list[str | None] = [f"{head} {number}" for number in range(11)]
    assert shared(texts, [f"{head} 99"]) == [False] * 11
    assert shared(texts, [f"{head} 4", "7"]) == [number == 4 for number in range(11)]  # the same in all
    assert shared(texts[1:], [f"{head} 99"]) == [True] * 10
    assert shared(texts, [f"{head} 99"], common=0) == [True] * 11
    assert shared([*texts, f"a b {ASKED}"], [f"{head} {ASKED}"]) == [*[False] * 11, True]


def test_texts_in_several_chunks_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str | None] = [f"{ASKED} {number}" for number in range(6)]
    texts[3:3] = [None, "", "x" * 500]
    expected = [shared(texts, [ASKED], common=common) for common in (0, 5, 6)]
    assert [sum(each) for each in expected] == [6, 0, 6]
    monkeypatch.setattr(module, "_CHUNK_CHARS", 100)
    assert [shared(texts, [ASKED], common=common) for common in (0, 5, 6)] == expected


@pytest.mark.slow
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c,", "D"]), max_size=8).map(" ".join), max_size=8),
    st.lists(st.lists(st.sampled_from(["a", "b", "c", "d!"]), max_size=8).map(" ".join), max_size=4),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_as_the_sets_of_word_ngrams_say(texts: list[str], evaluated: list[str], words: int, common: int) -> None:
    def ngrams(text: str) -> set[tuple[str, ...]]:
        said = text.lower().translate(str.maketrans("", "", string.punctuation)).split()
        return {tuple(said[at : at + words]) for at in range(len(said) - words + 1)}

    def whole(text: str) -> str:
        return "".join(text.lower().split())

    known = set[tuple[str, ...]]().union(*map(ngrams, evaluated))
    count = Counter(gram for text in texts for gram in ngrams(text) & known)
    expected = [
        any(count[gram] <= (common or len(texts)) for gram in ngrams(text) & known)
        or (whole(text) != "" and whole(text) in map(whole, evaluated))
        for text in texts
    ]
    assert shared([*texts], [*evaluated], words=words, common=common) == expected


def test_any_text_is_taken_as_it_is() -> None:
    odd = [
        "\0" * 40,
        "\u202e" + ASKED,
        "İ" * 20,
        "e\u0301 " * 20,
        "1 " * 50_000,
        "的一是不了人我在有他这为之大来以",
        "\ufffd",
    ]
    assert shared([*odd], [*odd]) == [True] * len(odd)
    assert shared([*odd], ["1 " * 13]) == [False, False, False, False, True, False, False]
    assert contaminated(pa.array([], pa.string()), pa.array(odd)).tolist() == []
    assert shared([*odd], []) == [False] * len(odd)


def test_a_problem_in_messages_is_its_messages() -> None:
    turns = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}], None, []]
    table = pa.table({"question": pa.array([None, "2 + 2", None], pa.string()), "messages": pa.array(turns)})
    assert texts_of(table).to_pylist() == [f"Be brief.\n{ASKED}", "2 + 2", None]
    assert contaminated(texts_of(table), pa.array([f"So {ASKED}"])).tolist() == [True, False, False]


def test_the_filter_drops_what_the_stage_has_found() -> None:
    table = pa.table({"problem_id": ["a", "b"], "question": ["1 =", "2 ="], "contaminated": np.array([1, 0])})
    found = decontaminated(candidates(table, None))
    assert found.kept.tolist() == [False, True]
    assert found.counts() == {"decontaminated: shares its text with an evaluation problem": 1}
    with pytest.raises(BadInputError, match="looks for evaluation problems, and none are given"):
        decontaminated(candidates(table.drop_columns(["contaminated"]), None))
