"""The filter script: shares of letters, counted by hand."""

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.curation.candidates import Candidates, candidates, no_candidates
from gradus.data.curation.filters.scripts import script
from gradus.data.errors import UsageError


def pool(*questions: str | None) -> Candidates:
    turns = [None if each is not None else [{"role": "user", "content": "Сколько?"}] for each in questions]
    ids = [f"p{i}" for i in range(len(questions))]
    table = pa.table({"problem_id": ids, "question": pa.array(questions, pa.string()), "messages": pa.array(turns)})
    return candidates(table, None)


def test_a_question_is_of_a_script_by_its_letters() -> None:
    asked = pool("What is 3 + 4?", "Сколько будет 3 + 4?", "3 + 4 =", "求 x 的值", None, "Où étiez-vous ?", "")
    assert script(asked).kept.tolist() == [True, False, True, False, False, True, True]
    assert script(asked, scripts="Cyrillic").kept.tolist() == [False, True, True, False, True, False, True]
    # Of the letters of the fourth, x is Latin and three are Han.
    assert script(asked, scripts="Han", min_frac=0.75).kept.tolist()[3]
    assert not script(asked, scripts="Han", min_frac=0.76).kept.tolist()[3]
    assert script(asked, scripts="Han Latin Cyrillic", min_frac=1.0).kept.all()
    assert script(asked, scripts="Han").counts() == {"script: below 0.9 in Han": 5}
    assert script(pool("कितने हैं ३"), scripts="Devanagari", min_frac=1.0).kept.all()  # its marks are no letters


@pytest.mark.slow
@given(st.text(st.sampled_from("aZéßжЯ1 ,-\u0301"), max_size=20), st.floats(0, 1))
def test_as_the_names_of_characters_say(text: str, share: float) -> None:
    letters = [each for each in text if unicodedata.category(each).startswith("L")]
    latin = [each for each in letters if unicodedata.name(each).startswith("LATIN")]
    expected = not letters or len(latin) / len(letters) >= share
    assert script(pool(text), min_frac=share).kept.tolist() == [expected]


@pytest.mark.parametrize("names", ["Klingon", "Latin}", " ", "", "Latin ["])
def test_a_script_that_there_is_not_is_refused(names: str) -> None:
    with pytest.raises(UsageError, match="no scripts of Unicode"):
        script(no_candidates(), scripts=names)
