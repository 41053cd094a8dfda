"""Groups with their texts, and the pieces of their tokens."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.groups import groups_of, read_groups, why
from gradus.tasks.inspect.sql_views import open_run
from gradus.tasks.inspect.token_pieces import split, word_diff
from tests.tasks.made_run import QUESTIONS, RUN, MadeRun


def test_a_group_has_texts_parts_hint_and_a_reason(rows: Any) -> None:
    (key,) = (each for each in groups_of(rows, "b") if each.purpose == "hint2")
    (group,) = read_groups(rows, [key])
    assert (group.question, group.answer, group.hint_level, group.hint_text) == ("2 + 2 =", "4", 2, "think")
    best, worst = group.rollouts
    assert (best["completion"], best["reward"], dict(best["parts"])) == (
        "b0 of hint2 1",
        1.0,
        {"numeric": 1.0, "format": 0.5},
    )
    assert (worst["reward"], worst["advantage"], worst["weight"], worst["mismatch"]) == (0.0, -0.5, 1.0, 0.25)
    assert why(best, group.answer) == "numeric@1 read b0 of hi; the answer is 4: correct"
    assert best["pieces"] is None  # its tokens are not its text


@pytest.mark.parametrize(
    ("rewards", "limit", "shown"),
    [
        ((0.1, 0.5, 0.3, 0.9, 0.7), 0, [0.9, 0.1, 0.7, 0.3, 0.5]),
        ((0.1, 0.5, 0.3, 0.9), 3, [0.9, 0.1, 0.5]),
        ((0.5,), 2, [0.5]),
    ],
)
def test_the_best_and_the_worst_take_turns(
    tmp_path: Path, rewards: tuple[float, ...], limit: int, shown: list[float]
) -> None:
    run = MadeRun(Home(tmp_path))
    run.batch(run.problems("9", QUESTIONS), 1, "train", {"a": rewards})
    run.finish()
    with open_run(Home(tmp_path), RUN, pytest.fail) as rows:
        (key,) = groups_of(rows, "a")
        (group,) = read_groups(rows, [key], limit)
    assert [rollout["reward"] for rollout in group.rollouts] == shown
    assert group.num_rollouts == len(rewards)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A byte-level tokenizer: a character may be several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    tokenizer.train_from_iterator(["two and two are four"] * 8, trainer)
    return tokenizer


@given(st.text(max_size=40))
def test_pieces_are_the_text_whatever_it_holds(byte_level: Tokenizer, text: str) -> None:
    tokens = [*byte_level.encode(text).ids, 0]
    logprobs = [-float(place) for place in range(len(tokens))]
    pieces = split(byte_level, text, tokens, logprobs)
    assert pieces is None or "".join(piece for piece, _ in pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert pieces is not None


def test_a_piece_has_the_log_prob_of_the_token_that_ends_it(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("éa").ids  # two bytes, then one
    assert len(tokens) == 3
    assert split(byte_level, "éa", tokens, [-1.0, -2.0, -3.0]) == [("é", -2.0), ("a", -3.0)]
    assert split(byte_level, "é", tokens, [-1.0, -2.0, -3.0]) == [("é", -2.0), ("", -3.0)]
    assert split(byte_level, "other", tokens, [-1.0, -2.0, -3.0]) is None


@given(st.text(alphabet="ab \n", max_size=30), st.text(alphabet="ab \n", max_size=30))
def test_a_diff_loses_nothing_and_marks_nothing_in_equal_texts(left: str, right: str) -> None:
    sides = word_diff(left, right)
    assert ["".join(text for text, _ in side) for side in sides] == [left, right]
    kept = ["".join(text for text, differs in side if not differs) for side in sides]
    assert kept[0] == kept[1]
    assert left != right or not any(differs for side in sides for _, differs in side)
