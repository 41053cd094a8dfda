"""The policy that updates are held to: the starting one, or a later one that the recipe names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref
from gradus.flows.loop.inputs import run_name
from gradus.flows.loop.round.outcomes import Beginning
from gradus.flows.loop.training import train
from gradus.flows.recipe.config import Recipe, ReferenceConfig
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import START, Rehearsal, policy_after, recipe

KL = {"kl_coef": 0.01}


@dataclass
class Held(Rehearsal):
    """A rehearsal that notes the reference of each update, and the weights that stay after each round."""

    references: dict[int, str] = field(default_factory=dict)
    kept: list[set[int]] = field(default_factory=list)

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None:
        self.kept.append(weights)

    def stage(self, call: Call) -> Outcome:
        if call.name == "update":
            self.references[call.round] = str(call.inputs["reference"][0])
        return super().stage(call)


def held(plan: Recipe, start: Beginning = START, entropy: list[float] | None = None) -> Held:
    session = Held(entropy or [0.5] * 9, pass_at_1=[0.0, 0.5, *[0.0] * 7])
    train(session, plan, start)  # pyright: ignore[reportArgumentType] - has no store
    return session


def references(*rounds: int) -> dict[int, str]:
    return {index: policy_after(each) for index, each in enumerate(rounds, start=1)}


@pytest.mark.parametrize(
    ("reference", "rounds"),
    [
        ({}, (0, 0, 0, 0, 0, 0)),
        ({"renew_every": 2}, (0, 0, 2, 2, 4, 4)),
        ({"renew_every": 1}, (0, 1, 2, 3, 4, 5)),  # the policy that the update begins with
        ({"lag_rounds": 2}, (0, 0, 0, 1, 2, 3)),
        ({"phase": True}, (0, 0, 0, 0, 0, 0)),  # there is one phase
    ],
)
def test_each_round_is_held_to_the_policy_that_the_recipe_names(
    reference: dict[str, Any], rounds: tuple[int, ...]
) -> None:
    assert held(recipe([], rounds=6, reference=reference, update=KL)).references == references(*rounds)
    overlapped = recipe([], rounds=6, reference=reference, update={**KL, "max_age": 1}, overlap=1)
    assert held(overlapped).references == references(*rounds)


def test_a_phase_is_held_to_the_policy_that_it_began_with() -> None:
    start = Beginning(START.policy, START.problems, START.suites, phases=(START.problems,) * 3)
    plan = recipe([], 6, reference={"phase": True}, update=KL, phase=[{"rounds": 2}, {"rounds": 3}, {"rounds": 1}])
    assert held(plan, start).references == references(0, 0, 2, 2, 2, 5)


def test_rounds_that_a_guard_undid_count_with_the_policy_that_it_went_back_to() -> None:
    guard = {"metric": "policy/entropy", "min": 0.05, "then": "back", "changes": {"update.lr": 3e-5}}
    plan = recipe([guard], rounds=6, reference={"lag_rounds": 1}, evaluate={"every": 1}, update=KL)
    session = held(plan, entropy=[0.5, 0.5, 0.5, 0.01, 0.5, 0.5, 0.5])
    assert session.updates[4][0] == policy_after(1)  # back from round 3
    assert session.references == references(0, 0, 1, 1, 1, 4)


def test_rounds_whose_rollouts_were_refused_as_they_were_made_ahead_keep_the_reference() -> None:
    guard = {"metric": "reward/mean", "min": 0.1, "then": "back", "times": 2, "changes": {"update.lr": 3e-5}}
    plan = recipe([guard], rounds=4, update={**KL, "max_age": 1}, overlap=1)
    session = Held([0.5] * 9, reward={1: 0.5, 2: 0.0, 3: 0.0, 4: 0.5})
    train(session, plan, START)  # pyright: ignore[reportArgumentType] - has no store
    assert session.updates[4][0] == policy_after(1)  # the second time back is at round 2, which was not learned
    assert session.references == {1: policy_after(0), 4: policy_after(0)}


@pytest.mark.parametrize(
    ("reference", "kept"),
    [
        ({}, [{1}, {2}, {3}, {4}, {5}, {6}]),
        ({"renew_every": 2}, [{1}, {2}, {2, 3}, {4}, {4, 5}, {6}]),
        ({"lag_rounds": 2}, [{1}, {1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}, {4, 5, 6}]),
    ],
)
def test_what_later_rounds_are_held_to_is_not_pruned(reference: dict[str, Any], kept: list[set[int]]) -> None:
    plan = recipe([], rounds=6, reference=reference, update=KL, keep={"last": 1}, save_state_every=100)
    assert held(plan).kept == kept


@given(st.sampled_from(["renew_every", "lag_rounds"]), st.integers(1, 5), st.integers(1, 30))
def test_the_rounds_that_are_kept_are_those_that_are_asked_for(way: str, number: int, index: int) -> None:
    config = ReferenceConfig.model_validate({way: number})
    asked = {config.round_of(later, 0) for later in range(index + 1, index + 40)}
    assert config.rounds_after(index, 0) == {each for each in asked if each <= index}


def test_the_name_of_a_run_without_it_is_as_before_and_two_of_them_are_refused() -> None:
    assert (
        run_name(recipe([], reference={})) == run_name(recipe([])) != run_name(recipe([], reference={"lag_rounds": 1}))
    )
    with pytest.raises(UsageError, match="renew_every, lag_rounds and phase name different policies: set one of them"):
        recipe([], reference={"lag_rounds": 1, "renew_every": 2})
    with pytest.raises(UsageError, match=r"update\.reference = ema is another one"):
        recipe([], reference={"lag_rounds": 1}, update={**KL, "reference": "ema", "ema_decay": 0.9})
