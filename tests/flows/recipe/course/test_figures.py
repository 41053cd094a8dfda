"""Metrics of evaluations and trackers that phases, waves, guards and schedules follow."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gradus.components.recorded import Until
from gradus.data.errors import UsageError
from gradus.flows.loop.round.outcomes import Trained
from gradus.flows.loop.training import train
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.past import Past
from gradus.flows.recipe.course.phases import phase_of
from gradus.tasks.runtime.calls import Call
from tests.flows.recipe.test_guards import START, Rehearsal, recipe

PASS = "eval/heldout/pass_at_1"
NO_RISE = {"metric": PASS, "without": "rise", "patience": 3}
COUNTS = "beta_posterior.alpha"


@dataclass
class Measured(Rehearsal):
    """A rehearsal whose evaluations write pass@1, trackers the mean of their columns, and updates their steps."""

    means: dict[int, float] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    evaluated: list[int] = field(default_factory=list)

    def stage(self, call: Call) -> Any:
        found = super().stage(call)
        metrics: dict[str, float] = {**found.report.get("metrics", {})}
        if call.name == "evaluate":
            self.evaluated.append(call.round)
            metrics[PASS] = self.pass_at_1[call.round]
        if call.name == "tracker" and call.config.means:
            metrics[call.config.means[0]] = self.means[call.round]
        if call.name == "update":
            self.rates[call.round] = call.config.lr
        summary: Any = {**found.summary, **({"updates": 2} if call.name == "update" else {})}
        return replace(found, report={"metrics": metrics, "summary": summary})


def trained(session: Measured, plan: Recipe) -> Trained:
    start = replace(
        START, phases=(START.problems,) * len(plan.phase), suites={"heldout": START.problems, "other": START.problems}
    )
    return train(session, plan, start)  # pyright: ignore[reportArgumentType] - has no store


def first_of_second_phase(session: Measured, until: dict[str, Any], rounds: int = 9, **body: Any) -> int:
    phases = [{"rounds": 20, "until": until}, {"changes": {"update.lr": 9e-5}}]
    trained(session, recipe([], rounds=rounds, phase=phases, **body))
    return min((index for index, lr in session.rates.items() if lr == 9e-5), default=0)


@pytest.mark.parametrize(
    ("pass_at_1", "first"),
    [
        ([0.2, 0.1, 0.2, 0.2, 0.9], 4),  # never above the 0.2 of the starting policy
        ([0.2, 0.3, 0.3, 0.2, 0.1, 0.9], 5),
        ([0.1, 0.2, 0.2, 0.3, 0.2, 0.2, 0.31, 0.1, 0.1, 0.3], 0),
    ],
)
def test_a_phase_ends_when_a_suite_has_not_risen_for_three_evaluations(pass_at_1: list[float], first: int) -> None:
    session = Measured([0.5] * 10, pass_at_1=[*pass_at_1, *[0.0] * 9])
    assert first_of_second_phase(session, NO_RISE, evaluate={"every": 1}) == first


def test_rounds_between_evaluations_do_not_count() -> None:
    session = Measured([0.5] * 10, pass_at_1=[0.2, 9, 0.2, 9, 0.2, 9, 0.2, 9, 9, 9])
    assert first_of_second_phase(session, NO_RISE, evaluate={"every": 2}) == 7
    at_least = {"metric": PASS, "min": 0.3, "patience": 2}
    session = Measured([0.5] * 10, pass_at_1=[0.9, 0, 0.2, 0, 0.3, 0, 0.4, 0, 0, 0])
    assert first_of_second_phase(session, at_least, evaluate={"every": 2}) == 7


def test_with_overlap_it_is_known_one_round_later() -> None:
    session = Measured([0.5] * 10, pass_at_1=[0.2, 0.1, 0.2, 0.2, 0.9, 0, 0, 0, 0, 0])
    body: dict[str, Any] = {"evaluate": {"every": 1}, "overlap": 1, "update": {"max_age": 1}}
    assert first_of_second_phase(session, NO_RISE, **body) == 5


def test_a_training_ends_with_its_last_phase_by_an_evaluation_and_every_suite_is_evaluated_then() -> None:
    suites = [{"name": "heldout", "every": 1}, {"name": "other", "problems": "bundled:heldout"}]
    session = Measured([0.5] * 10, pass_at_1=[0.2, 0.3, 0.3, 0.3, 0.1, *[0.9] * 9])
    plan = recipe([], rounds=9, phase=[{"rounds": 9, "until": NO_RISE}], evaluate={"suites": suites})
    assert trained(session, plan).rounds == 4
    assert session.evaluated == [0, 0, 1, 2, 3, 4, 4, 1]  # `other` at both ends, and of the best checkpoint


def test_a_later_phase_begins_with_the_last_value_before_it() -> None:
    plan = recipe([], phase=[{"rounds": 2}, {"rounds": 9, "until": NO_RISE}], evaluate={"every": 1}, rounds=9)
    past = Past(begun={PASS: 0.9})
    for value in (0.5, 0.4, 0.4, 0.3, 0.3):
        past = past.after(0, {}).evaluated({PASS: value})
    assert [phase_of(plan, index, past) for index in (3, 5, 6)] == [(1, 3), (1, 3), None]


def test_a_guard_goes_back_from_an_evaluation_and_stops_at_the_second() -> None:
    guard = {"metric": PASS, "min": 0.3, "then": "back", "changes": {"update.lr": 3e-5}}
    session = Measured([0.5] * 10, pass_at_1=[0.4, 0.5, 0.2, 0.5, 0.1, 0.9])
    end = trained(session, recipe([guard], rounds=6, evaluate={"every": 1}, update={"lr": 1e-4}))
    assert session.rates == {1: 1e-4, 2: 1e-4, 3: 3e-5, 4: 3e-5}
    assert session.updates[3][0] == str(session.updates[2][0])  # from the policy of round 1, the best
    assert end.stopped == f"round 4: {PASS} = 0.1 is below the guard's min = 0.3"


def test_a_schedule_and_a_wave_follow_a_tracker_and_only_then_its_mean_is_asked_for() -> None:
    lr = {"schedule": "by_metric", "metric": COUNTS, "low": 1.0, "high": 3.0, "start": 1e-4, "end": 3e-5}
    session = Measured([0.5] * 10, means={1: 1.0, 2: 2.0, 3: 9.0})
    wave = {"name": "xrpo", "until": {"metric": COUNTS, "min": 2}}
    body: dict[str, Any] = {"trackers": ["beta_posterior"], "waves": [wave]}
    trained(session, recipe([], rounds=3, update={"lr": lr}, **body))
    assert session.rates == pytest.approx({1: 1e-4, 2: 1e-4, 3: 6.5e-5})
    assert [index for index, purpose in session.samples if purpose == "xrpo1"] == [1, 2]
    plain = Measured([0.5] * 10)
    trained(plain, recipe([], trackers=["beta_posterior"]))  # which would fail for want of its mean


def test_a_schedule_counts_optimiser_steps() -> None:
    lr = {"schedule": "linear", "start": 1e-4, "end": 2e-5, "optimizer_steps": 8}
    session = Measured([0.5] * 10)
    plan = recipe([], rounds=6, update={"lr": lr})
    trained(session, plan)
    assert session.rates == pytest.approx({1: 1e-4, 2: 8e-5, 3: 6e-5, 4: 4e-5, 5: 2e-5, 6: 2e-5})
    rounds = recipe([], update={"lr": {"schedule": "linear", "start": 1e-4, "end": 2e-5, "rounds": 5}})
    assert "optimizer_steps" in plan.schedules["update.lr"].settings
    assert "optimizer_steps" not in rounds.model_dump_json()  # the names of earlier runs stay


def test_ends_read_as_sentences() -> None:
    assert str(Until.model_validate(NO_RISE)) == f"{PASS} is without a rise in 3 evaluations in a row"
    both = Until(metric="reward/mean", min=0.5, max=0.9, without="fall")
    assert str(both) == "reward/mean is at least 0.5 and at most 0.9 and without a fall"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"phase": [{"rounds": 2, "until": NO_RISE}]}, "evaluate the suite heldout between rounds too"),
        ({"phase": [{"rounds": 2, "until": {**NO_RISE, "metric": "eval/heldut/pass_at_1"}}], "evaluate": {"every": 1}},
         "did you mean eval/heldout/pass_at_1"),
        ({"waves": [{"name": "xrpo", "until": {"metric": "beta_posterior.alfa", "min": 1}}],
          "trackers": ["beta_posterior"]}, "no round records 'beta_posterior.alfa'; did you mean beta_posterior.alpha"),
        ({"guards": [{"metric": COUNTS, "min": 1}]}, f"guards.0: no round records '{COUNTS}'"),
        ({"phase": [{"rounds": 2, "until": {"metric": PASS}}]}, "until needs min or max, or without"),
    ],
)  # fmt: skip
def test_what_no_round_records_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe(body.pop("guards", []), **body)
