"""Which suite is evaluated when, which checkpoint is the best, and what is said of a figure that chose it."""

from typing import Any

import pytest

from gradus.data.errors import GateError
from gradus.data.lake.store import Ref
from gradus.flows.loop.measuring import Measurements
from gradus.flows.recipe.reading import parse_recipe
from gradus.flows.recipe.suites import EvaluationPlan, Suite
from gradus.tasks.runtime.calls import Outcome

PROBLEMS = {name: Ref("problems", name.encode().hex().ljust(8, "0")) for name in ("main", "other", "pick")}


def plan(**settings: Any) -> EvaluationPlan:
    return parse_recipe({"name": "x", "evaluate": settings}, "x.toml").evaluate


class Rehearsal:
    """Evaluations of a policy on a suite with figures made up beforehand: pass@1 by suite, then by round."""

    def __init__(self, settings: EvaluationPlan, figures: dict[str, list[float]], same: tuple[str, ...] = ()) -> None:
        self.calls: list[tuple[str, int, str, str | None]] = []
        self.figures = figures
        shared = dict.fromkeys(same, PROBLEMS["main"])
        self.measured = Measurements(settings, {**PROBLEMS, **shared}, self.evaluate)

    def evaluate(self, suite: Suite, policy: Ref, index: int, baseline: Ref | None) -> Outcome:
        self.calls.append((suite.name, index, str(policy), str(baseline) if baseline else None))
        value = self.figures[suite.name][index]
        report = {"summary": {"pass_at": {"1": {"value": value}}}}
        ref = Ref("evaluations", f"{suite.name}{index}".encode().hex().ljust(8, "0"))
        return Outcome("evaluate", "eval", index, ref, reused=False, seconds=0.0, report=report)

    def run(self, rounds: int) -> int:
        """All rounds; the round of the best checkpoint."""
        for index in range(rounds + 1):
            self.measured.take(index, policy_of(index), last=index == rounds)
        choice = self.measured.choice()
        return choice.round if choice else rounds


def policy_of(index: int) -> Ref:
    return Ref("checkpoints", str(index) * 8)


def values(rehearsal: Rehearsal, best: int) -> dict[str, tuple[float, ...]]:
    found = rehearsal.measured.figures(best)
    return {
        name: tuple(each["pass_at"]["1"]["value"] for each in (f["before"], f["after"], f["best"]))
        for name, f in found.items()
    }


def test_the_best_checkpoint_is_chosen_on_the_set_apart_and_then_measured_on_the_reported_ones() -> None:
    settings = plan(
        select="pick", suites=[{"name": "main"}, {"name": "other", "every": 2}, {"name": "pick", "every": 1}]
    )
    made_up = {"main": [0.1, 0.9, 0.3, 0.2], "other": [0.0, 0.5, 0.6, 0.7], "pick": [0.2, 0.4, 0.8, 0.8]}
    rehearsal = Rehearsal(settings, made_up)
    best = rehearsal.run(rounds=3)
    assert best == 2  # the earlier of two equals, not round 1, the best on `main`
    assert [call[:2] for call in rehearsal.calls] == [
        ("main", 0), ("other", 0), ("pick", 0),
        ("pick", 1),
        ("other", 2), ("pick", 2),
        ("main", 3), ("other", 3), ("pick", 3),
    ]  # fmt: skip
    assert values(rehearsal, best) == {"main": (0.1, 0.2, 0.3), "other": (0.0, 0.7, 0.6)}
    start = str(rehearsal.measured.outcomes["main", 0].ref)
    assert rehearsal.calls[-1] == ("main", 2, str(policy_of(2)), start)  # measured only now, once
    choice = rehearsal.measured.choice()
    assert choice is not None
    assert choice.remark == ""
    assert choice.how == "best pass@1 on pick among the checkpoints of rounds 0, 1, 2, 3"
    assert choice.as_dict()["compared"][2] == {"round": 2, "pass_at_1": 0.8}


@pytest.mark.parametrize(
    ("settings", "same", "where"),
    [
        ({"suites": [{"name": "main", "every": 1}, {"name": "other"}]}, (), "main"),
        ({"select": "main", "suites": [{"name": "main", "reported": True}, {"name": "other"}]}, (), "main"),
        ({"select": "pick", "suites": [{"name": "main"}, {"name": "other"}, {"name": "pick"}]}, ("pick",), "main"),
        (
            {"select": "pick", "suites": [{"name": "main"}, {"name": "other"}, {"name": "pick"}]},
            ("other", "pick"),
            "main and other",
        ),
    ],
    ids=["no set apart", "reported all the same", "the same problems by another name", "on two suites"],
)
def test_a_choice_on_reported_problems_is_said(settings: dict[str, Any], same: tuple[str, ...], where: str) -> None:
    rehearsal = Rehearsal(plan(**settings), {name: [0.1, 0.3, 0.2] for name in PROBLEMS}, same)
    rehearsal.run(rounds=2)
    choice = rehearsal.measured.choice()
    assert choice is not None
    assert f"was chosen on {where}, so its figure there is optimistic" in choice.remark


@pytest.mark.parametrize("settings", [{"name": "main"}, {"name": "main", "every": 1, "select": "last"}])
def test_without_a_choice_the_last_checkpoint_is_taken_though_it_is_worse(settings: dict[str, Any]) -> None:
    rehearsal = Rehearsal(plan(**settings), {"main": [0.5, 0.9, 0.1]})
    assert rehearsal.run(rounds=2) == 2
    assert rehearsal.measured.choice() is None
    assert values(rehearsal, 2) == {"main": (0.5, 0.1, 0.1)}


def test_a_run_without_rounds_has_one_checkpoint_and_no_choice() -> None:
    rehearsal = Rehearsal(plan(name="main", every=1), {"main": [0.5]})
    assert rehearsal.run(rounds=0) == 0
    assert rehearsal.measured.choice() is None
    assert len(rehearsal.calls) == 1


def test_a_suite_without_any_verdict_ends_training_at_its_first_evaluation() -> None:
    report = {"summary": {"suite": "main", "pass_at": {}, "judged": 0, "rollouts": 128}}
    unjudged = Outcome("evaluate", "eval", 0, Ref("evaluations", "0" * 8), reused=False, seconds=0.0, report=report)
    measured = Measurements(plan(suites=[{"name": "main"}]), PROBLEMS, lambda *_: unjudged)
    with pytest.raises(GateError, match=r"round 0 on main has no pass@1 \(0 of 128 rollouts judged\)"):
        measured.take(0, policy_of(0), last=False)
