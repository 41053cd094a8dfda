"""Rounds without signal: skipped, counted, and the end of a run that has nothing else."""

from dataclasses import dataclass, replace
from typing import Any

from gradus.flows.loop.inputs import run_name
from gradus.flows.loop.round.outcomes import Trained
from gradus.flows.loop.training import train
from gradus.flows.recipe.config import Recipe
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import START, Rehearsal, policy_after, recipe


@dataclass
class Silent(Rehearsal):
    """A rehearsal whose updates of some rounds have no signal."""

    rounds: tuple[int, ...] = ()
    made: tuple[dict[int, str], set[int]] = ({}, set())
    """Checkpoints by round that room was made among the last time, and the rounds whose weights stayed."""

    def make_room(self, made: Any, weights: set[int], states: set[int]) -> None:
        self.made = ({index: str(ref) for index, ref in made.items()}, weights)

    def stage(self, call: Call) -> Outcome:
        outcome = super().stage(call)
        if call.name != "update" or call.round not in self.rounds:
            return outcome
        assert call.facts["may_skip"]
        return replace(outcome, report={"summary": {"updates": 0, "skipped_updates": 1, "groups": 3}, "metrics": {}})


def rehearsed(silent: tuple[int, ...], plan: Recipe, pass_at_1: list[float] | None = None) -> tuple[Silent, Trained]:
    session = Silent([0.5] * 99, pass_at_1 or [0.0] * 99, rounds=silent)
    return session, train(session, plan, START)  # pyright: ignore[reportArgumentType] - has no store


def test_a_round_without_signal_keeps_the_policy_and_is_counted() -> None:
    session, end = rehearsed((1, 3, 4), recipe([], rounds=5))
    began = {index: policy for index, (policy, _) in session.updates.items()}
    start, second = policy_after(0), policy_after(2)
    assert began == {1: start, 2: start, 3: second, 4: second, 5: second}
    assert (end.stopped, end.skipped, str(end.policy)) == ("", (1, 3, 4), policy_after(5))
    assert end.remarks == ("3 of 5 rounds had no signal and skipped their update: 1, 3, 4",)


def test_the_run_ends_after_as_many_in_a_row_as_its_recipe_says_or_if_no_round_had_signal() -> None:
    _, end = rehearsed((2, 3), recipe([], rounds=9, max_skipped_updates=2))
    limit = "since round 2 every group has had rewards without variance (max_skipped_updates = 2)"
    assert (end.stopped, end.rounds, str(end.policy)) == (limit, 3, policy_after(1))
    _, end = rehearsed((1,), recipe([], rounds=9, max_skipped_updates=1))
    assert end.stopped == "in round 1 every group has had rewards without variance (max_skipped_updates = 1)"
    _, end = rehearsed((2, 4, 6), recipe([], rounds=6, max_skipped_updates=2))
    assert end.stopped == ""  # not in a row
    _, end = rehearsed((1, 2, 3), recipe([], rounds=3))
    assert end.stopped == "no round had signal: in all 3 every group had rewards without variance"
    assert rehearsed(tuple(range(1, 99)), recipe([], rounds=90))[1].rounds == 10  # by default
    assert run_name(recipe([], max_skipped_updates=2)) == run_name(recipe([]))


def test_a_policy_that_was_best_in_a_skipped_round_keeps_its_weights() -> None:
    plan = recipe([], rounds=4, evaluate={"every": 2}, keep={"last": 1})
    session, _ = rehearsed((2,), plan, [0.1, 0.1, 0.9, 0.2, 0.2])
    made, weights = session.made
    assert (made[1], 2 in made) == (policy_after(1), False)
    assert 1 in weights  # its evaluation was that of round 2
