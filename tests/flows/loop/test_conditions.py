"""Conditions of waves by a metric, and settings of roles and uses by round, as the loop keeps them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.flows.loop.training import train
from gradus.flows.recipe.checking import check_settings
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import START, Rehearsal, recipe, trained

UNTIL = {"metric": "reward/mean", "min": 0.6}


def rounds_with(session: Rehearsal, purpose: str = "refill1") -> list[int]:
    """The rounds in which a wave was asked."""
    return sorted(index for index, called in session.samples if called == purpose)


def test_a_wave_ends_after_the_first_round_that_reaches_its_limit_and_stays_ended() -> None:
    session = Rehearsal([0.5] * 9, reward={1: 0.2, 2: 0.6, 3: 0.1, 4: 0.1})
    trained(session, recipe([], waves=[{"name": "refill", "until": UNTIL}, "xrpo"]))
    assert rounds_with(session) == [1, 2]
    assert rounds_with(session, "xrpo1") == [1, 2, 3, 4]
    assert session.said == ["reward/mean is at least 0.6: round 3 and those after it have no wave refill"]


def test_rounds_in_a_row_are_as_many_as_the_patience() -> None:
    session = Rehearsal([0.5] * 9, reward={1: 0.7, 2: 0.1, 3: 0.7, 4: 0.7, 5: 0.7})
    trained(session, recipe([], rounds=6, waves=[{"name": "refill", "until": {**UNTIL, "patience": 2}}]))
    assert rounds_with(session) == [1, 2, 3, 4]


def test_with_an_overlap_a_wave_ends_one_round_later() -> None:
    entropy = {"name": "refill", "until": {"metric": "policy/entropy", "max": 0.3}}
    for overlap, rounds in ((0, [1, 2]), (1, [1, 2, 3])):
        session = Rehearsal([0, 0.9, 0.3, 0.9, 0.9, 0.9])
        trained(session, recipe([], waves=[entropy], overlap=overlap, update={"max_age": overlap}))
        assert rounds_with(session) == rounds


@pytest.mark.parametrize(
    ("until", "sentence"),
    [
        ({"metric": "reward/maen", "min": 1}, "until of the wave refill: no round records 'reward/maen'; did you mean"),
        ({"metric": "reward/mean"}, "until needs min or max"),
        (
            {"metric": "policy/kl_ref", "max": 1},
            "phase, wave or schedule reads policy/kl_ref, which is measured only with",
        ),
    ],
)
def test_a_condition_that_could_never_hold_is_refused(until: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        recipe([], waves=[{"name": "refill", "until": until}])


@dataclass
class Judging(Rehearsal):
    """A rehearsal whose wave plans rows of a judge, and the settings with which they are sampled and judged."""

    settings: dict[tuple[int, str], Any] = field(default_factory=dict)
    updates: dict[str, dict[int, Any]] = field(default_factory=dict)

    def stage(self, call: Call) -> Outcome:
        found = super().stage(call)
        if call.purpose == "refill1":
            self.settings[call.round, call.name] = call.config
        if call.name == "update":
            self.updates.setdefault(call.purpose, {})[call.round] = call.config
        if call.name == "wave":
            found.report["summary"] = {"groups": 1, "uses": {"judge": ["judge"]}}
        return found


JUDGED: dict[str, Any] = {"waves": ["refill"], "roles": {"judge": {}}, "score": {"judge": {"rewards": ["verdict"]}}}


def test_a_role_and_the_judging_of_a_use_change_by_round(tmp_path: Path) -> None:
    overrides = [
        {"stage": "roles.judge", "from_round": 2, "changes": {"sample.max_tokens": 7, "rollout.top_p": 0.5}},
        {"stage": "score.judge", "round": 2, "changes": {"item_timeout_s": 3.0}},
    ]
    plan, session = recipe([], rounds=3, overrides=overrides, **JUDGED), Judging([0.5] * 9)
    check_settings(plan, tmp_path)
    trained(session, plan)
    of = session.settings
    usual = of[1, "score"].item_timeout_s
    assert [of[index, "wave"].roles["judge"].max_tokens == 7 for index in (1, 2, 3)] == [False, True, True]
    assert [of[index, "rollout"].top_p for index in (1, 2, 3)] == [1.0, 0.5, 0.5]
    assert [of[index, "score"].item_timeout_s for index in (1, 2, 3)] == [usual, 3.0, usual]


@pytest.mark.parametrize(
    ("stage", "changes", "sentence"),
    [
        ("roles.jugde", {}, "there is no stage 'roles.jugde' in it"),
        ("roles.judge", {"sample.m": 4}, "roles.judge"),
        ("roles.judge", {"policy": "bundled"}, "the policy of a role cannot change by round"),
        ("score.judge", {"rewards": ["nothing"]}, "nothing"),
        ("score.critic", {}, "there is no stage 'score.critic' in it"),
    ],
)
def test_an_override_of_no_role_or_of_what_it_cannot_be_is_refused(
    stage: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        recipe([], overrides=[{"stage": stage, "changes": changes}], **JUDGED)


def test_phases_guards_and_schedules_reach_roles_and_uses() -> None:
    lr = {"schedule": "linear", "start": 3e-4, "end": 1e-4, "rounds": 3}
    body = {**JUDGED, "roles": {"judge": {"update": {"lr": lr}}}}
    phases = [{"rounds": 2}, {"rounds": 1, "changes": {"roles.judge.sample.max_tokens": 9, "score.judge.retries": 3}}]
    plan, session = recipe([], phase=phases, **body), Judging([0.5] * 9)
    start = replace(START, phases=(START.problems, START.problems), roles={"judge": START.policy})
    train(session, plan, start)  # pyright: ignore[reportArgumentType] - has no store
    of, made = session.settings, session.updates["judge"]
    assert [of[index, "wave"].roles["judge"].max_tokens == 9 for index in (1, 2, 3)] == [False, False, True]
    assert [of[index, "score"].retries for index in (1, 2, 3)] == [0, 0, 3]
    assert [made[index].lr for index in (1, 2, 3)] == pytest.approx([3e-4, 2e-4, 1e-4])
