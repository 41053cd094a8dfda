"""Near duplicates: similarities by hand, and against every pair of random texts."""

import random

import pyarrow as pa

from gradus.data.curation.candidates import Candidates, candidates
from gradus.data.curation.filters.duplicates import near_duplicates


def pool(*questions: str | None) -> Candidates:
    turns = [None if each is not None else [{"role": "user", "content": "One two three four"}] for each in questions]
    ids, asked = pa.array([f"p{i}" for i in range(len(questions))], pa.string()), pa.array(questions, pa.string())
    return candidates(pa.table({"problem_id": ids, "question": asked, "messages": pa.array(turns)}), None)


def test_the_first_of_similar_questions_stays() -> None:
    # Runs of two words: one two, two three, three four against one two, two three, three five: 2 of 4 are shared.
    table = pool("One two, three four!", "one two three five", "one TWO three four", "six", "Six.", "", None, "...")
    found = near_duplicates(table, similarity=0.6, words=2)
    assert found.kept.tolist() == [True, True, False, True, False, True, False, True]
    assert found.counts() == {"near_duplicates: 0.6 like a problem before it": 3}
    assert near_duplicates(pool()).kept.tolist() == []
    # Once in eight times a half is overlooked; a third of the runs is never enough.
    assert near_duplicates(table, similarity=0.5, words=2).kept.tolist()[1] is False
    assert near_duplicates(pool("a b c d", "a b e f"), similarity=0.5, words=2).kept.all()


def test_as_every_pair_says() -> None:
    words = [f"w{i}" for i in range(40)]
    rng = random.Random(0)
    texts: list[str] = []
    for _ in range(250):
        text = rng.choices(words, k=30) if not texts or rng.random() < 0.5 else rng.choice(texts).split()
        texts.append(" ".join(rng.choice(words) if rng.random() < rng.choice((0, 0.03)) else each for each in text))

    def runs(text: str) -> set[str]:
        said = text.split()
        return {" ".join(said[i : i + 3]) for i in range(len(said) - 2)}

    kept: list[set[str]] = []
    expected: list[bool] = []
    for text in texts:
        own = runs(text)
        expected.append(all(len(own & each) / len(own | each) < 0.8 for each in kept))
        kept += [own] if expected[-1] else []
    assert near_duplicates(pool(*texts)).kept.tolist() == expected
    assert 50 < sum(expected) < 240
