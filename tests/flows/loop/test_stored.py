"""Rollouts of earlier rounds, as the loop hands them to a wave: how many rounds, after going back, with an overlap."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.flows.recipe.checking import check_settings
from gradus.flows.recipe.config import Recipe
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import Rehearsal, policy_after, recipe, trained


@dataclass
class Recorded(Rehearsal):
    """A rehearsal in which every wave plans rows from stored rollouts, and what it and its rollouts were handed."""

    rounds_of: dict[int, tuple[list[int], str]] = field(default_factory=dict)
    """Round -> the rounds whose rollouts its wave was handed, and the policy that samples."""
    parents_of: dict[tuple[int, str], int] = field(default_factory=dict)

    def stage(self, call: Call) -> Outcome:
        if call.name == "wave":
            assert len(call.inputs["stored_rollouts"]) == len(call.inputs["stored_scores"])
            named = [bytes.fromhex(ref.digest).decode() for ref in call.inputs["stored_rollouts"]]
            rounds = [int(each.split("-")[1]) for each in named if each.endswith("train")]
            self.rounds_of[call.round] = (rounds, str(call.inputs["sampler"][0]))
        if call.name == "rollout":
            self.parents_of[call.round, call.purpose] = len(call.inputs.get("parents", []))
        outcome = super().stage(call)
        if call.name == "wave":
            outcome.report["summary"] = {"groups": 1, "from_stored": 1}  # type: ignore[typeddict-unknown-key]
        return outcome


def with_replay(**body: Any) -> Recipe:
    known: dict[str, Any] = {"waves": ["replay"], "update": {"max_age": 2}, **body}
    return recipe([], **known)


def test_a_wave_is_handed_the_rounds_that_an_update_may_learn_from() -> None:
    session = Recorded([0.5] * 9)
    trained(session, with_replay())
    assert session.rounds_of == {
        1: ([], policy_after(0)),
        2: ([1], policy_after(1)),
        3: ([1, 2], policy_after(2)),
        4: ([2, 3], policy_after(3)),
    }
    # Rollouts of the round so far, and for two rounds those of the first plan and of the wave each.
    assert [session.parents_of[index, "replay1"] for index in (1, 2, 3, 4)] == [1, 3, 5, 5]
    assert session.parents_of[3, "train"] == 0


def test_what_was_sampled_after_the_policy_that_a_guard_goes_back_to_is_not_stored() -> None:
    guard = {"metric": "policy/entropy", "min": 0.05, "then": "back", "changes": {"update.lr": 3e-5}}
    session = Recorded([0, 0.9, 0.5, 0.04, 0.9], pass_at_1=[0.1, 0.4, 0.3, 0.0, 0.2])
    plan = recipe([guard], waves=["replay"], update={"max_age": 3, "lr": 1e-4}, evaluate={"every": 1})
    trained(session, plan)
    assert session.rounds_of[3] == ([1, 2], policy_after(2))
    assert session.rounds_of[4] == ([1], policy_after(1))


def test_a_wave_that_takes_up_what_no_update_would_learn_from_is_refused(tmp_path: Path) -> None:
    check_settings(with_replay(), tmp_path)
    with pytest.raises(UsageError, match="the wave replay takes up rollouts of earlier rounds, and"):
        check_settings(with_replay(update={}), tmp_path)
    with pytest.raises(UsageError, match="lets no update learn from them, one for the overlap") as error:
        check_settings(with_replay(update={"max_age": 1}, overlap=1), tmp_path)
    assert error.value.hint == "set update.max_age = 2, or more"
