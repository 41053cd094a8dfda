"""Which rounds keep weights and train states while a training goes on."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref
from gradus.flows.loop.training import kept_rounds, made_by_round
from gradus.flows.recipe.config import KeepConfig, Recipe, read_keep


def recipe(**settings: Any) -> Recipe:
    return Recipe.model_validate({"name": "x", **settings})


@pytest.mark.parametrize(
    ("settings", "num_rounds", "best", "weights", "states"),
    [
        ({}, 4, None, {1, 2, 3, 4}, {4}),  # nothing was saved on the way but the last
        ({}, 12, 3, set(range(1, 13)), {5, 10, 12}),
        ({"save_state_every": 1}, 3, None, {1, 2, 3}, {1, 2, 3}),
        ({"keep": {"last": 1}}, 9, 2, {2, 5, 9}, {5, 9}),  # 5: a killed run goes on from there
        ({"keep": {"last": 2, "every": 6}}, 18, 18, {6, 12, 15, 17, 18}, {15, 18}),
        ({"keep": {"last": 1, "every": 5, "best": False}}, 12, 2, {5, 10, 12}, {5, 10, 12}),
    ],
)
def test_the_newest_state_and_its_weights_stay(
    settings: dict[str, Any], num_rounds: int, best: int | None, weights: set[int], states: set[int]
) -> None:
    assert kept_rounds(recipe(**settings), range(1, num_rounds + 1), best) == (weights, states)


def test_a_guard_that_goes_back_needs_the_best_ones_state() -> None:
    guard = {"metric": "policy/entropy", "min": 0.1, "then": "back", "changes": {"update.lr": 1e-5}}
    assert kept_rounds(recipe(guards=[guard], keep={"last": 1}), range(1, 8), 2) == ({2, 5, 7}, {2, 5, 7})


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4), st.integers(0, 7))
def test_what_is_needed_to_go_on_is_never_given_up(num_rounds: int, save_every: int, last: int, every: int) -> None:
    settings = {"save_state_every": save_every, "keep": {"last": last, "every": every}}
    weights, states = kept_rounds(recipe(**settings), range(1, num_rounds + 1), None)
    saved = [index for index in range(1, num_rounds + 1) if index % save_every == 0]
    assert num_rounds in weights & states
    assert not saved or saved[-1] in weights & states
    assert states <= weights
    assert set(range(max(1, num_rounds - last + 1), num_rounds + 1)) <= weights


def test_a_choice_of_checkpoints_as_a_user_types_it() -> None:
    assert read_keep("last=2,every=5,best") == KeepConfig(last=2, every=5, best=True)
    assert read_keep("last=1") == KeepConfig(last=1, every=0, best=False)
    for text in ("last=0", "first=1", "last", "every=x", "last=2 best"):
        with pytest.raises(UsageError, match=r"names no checkpoints; write --keep last=2,every=5,best"):
            read_keep(text)


def test_a_skipped_round_made_no_checkpoint_and_the_beginning_is_no_rounds() -> None:
    start, one, two = (Ref("checkpoints", each * 32) for each in "abc")
    assert made_by_round({0: start, 1: start, 2: one, 3: one, 4: two}) == {2: one, 4: two}
