"""Inputs that are none, to every verb: each is refused in one short sentence that any person can read, and left out.

The good neighbours of what is refused are accepted, so that the corpus can fail in both directions.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from gradus.components.description import type_error
from tests.faults.malformed.policies import ROLLOUT, adapter, changed, policy_cases
from tests.faults.malformed.program import BOX, INPUTS, JARGON, MAX_CHARS, Case, Program, program
from tests.faults.malformed.tables import LEARNT, PLAN, QUESTION, SCORE, VERL, good_tables, jsonl, table_cases
from tests.faults.malformed.tables import ROLLOUT as ROLLED
from tests.faults.malformed.words import good_words, word_cases

EVERY = 1 if int(os.environ.get("GRADUS_FUZZ", "1")) > 1 else 7
"""One of this number of similar cases is run; every case with GRADUS_FUZZ=2."""
CASES = [*table_cases(EVERY), *policy_cases(EVERY), *word_cases(EVERY)]
TRACE = {"prompt_tokens": [1, 2], "response_tokens": [3, 1], "logprobs": [-0.5, -0.1], "reward": 1.0}
GOOD: Mapping[str, bytes] = {
    "good.jsonl": jsonl(QUESTION, {**QUESTION, "problem_id": "p2", "question": "2 + 2 =", "answer": 4}),
    "plan.jsonl": jsonl(PLAN),
    "rollouts.jsonl": jsonl(ROLLED),
    "learnt.jsonl": jsonl(LEARNT),
    "scores.jsonl": jsonl(SCORE),
    "verl.jsonl": jsonl(VERL),
    "traces.jsonl": jsonl(TRACE),
    "mine.py": b"def judge(rows):\n    return [1.0 for _ in rows]\n",
}
"""What the cases name beside what is wrong with them."""
NEIGHBOURS = [
    *(Case(f"{verb}: {' '.join(words)}", (verb, *words)) for verb, words in INPUTS.items()),
    *good_tables(),
    *good_words(),
    Case("ingest: an array of rows", ("ingest", "f.json"), {"f.json": json.dumps([QUESTION]).encode()}),
    Case("policy: a copy", ROLLOUT, {"odd": changed(lambda _: None)}),
    Case("adapter: of all layers", ROLLOUT, {"odd": adapter()}),
]
"""Commands that are right, and nearly one of the others."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("malformed")
    for name, content in GOOD.items():
        (folder / name).write_bytes(content)
    with program(folder) as made:
        yield made


@pytest.fixture(scope="module")
def good(here: Program) -> frozenset[str]:
    """The artifacts that good inputs make."""
    for case in NEIGHBOURS:
        answer = here.run(case)
        assert answer.code == 0, f"{case.name}: {answer.said}"
    return here.artifacts()


def test_the_corpus_is_large_and_names_each_case_once() -> None:
    assert len(CASES) >= 291
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name[:70])
def test_what_is_none_is_refused_in_a_sentence(here: Program, good: frozenset[str], case: Case) -> None:
    answer = here.run(case)
    said = " ".join(BOX.sub("", answer.said).replace(type_error, "").split())
    assert answer.code in (1, 2), f"accepted: {said}"
    assert said, "refused without a word"
    assert len(said) <= MAX_CHARS, f"{len(said)} characters: {said[:1000]}"
    assert not JARGON.search(said), f"{JARGON.search(said)}: {said}"
    assert case.makes or answer.made <= good, "an artifact was made"
