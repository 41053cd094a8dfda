"""Guards: a round outside a limit ends the run with its best policy, or goes back to it and on with other settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref
from gradus.flows.loop.inputs import run_name
from gradus.flows.loop.round.outcomes import Beginning, Trained
from gradus.flows.loop.training import train
from gradus.flows.recipe.config import Recipe, lasting
from gradus.flows.recipe.reading import parse_recipe
from gradus.tasks.runtime.calls import Call, Outcome

START = Beginning(Ref("checkpoints", "0" * 8), Ref("problems", "a" * 8), {"heldout": Ref("problems", "b" * 8)})
EVERY_ROUND = {"every": 1}


def recipe(guards: list[dict[str, Any]], rounds: int = 4, **body: Any) -> Recipe:
    return parse_recipe({"name": "x", "escalate": [], "rounds": rounds, "guards": guards, **body}, "x.toml")


@dataclass
class Rehearsal:
    """A session of made-up figures: entropy, pass@1 and reward by round; artifacts are named by their calls."""

    entropy: list[float]
    pass_at_1: list[float] = field(default_factory=lambda: [0.0] * 9)
    reward: dict[int, float] = field(default_factory=dict)
    updates: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Round -> the policy that it began with and its learning rate."""
    samples: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    """Round and purpose -> completions of a group, and their tokens at most."""
    difficulty: dict[int, str] = field(default_factory=dict)
    """Round -> the difficulty that its plan was made from."""
    said: list[str] = field(default_factory=list)

    def halt(self) -> None:
        raise AssertionError("nothing failed")

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)

    def stage(self, call: Call) -> Outcome:
        table = {"update": "checkpoints", "difficulty": "difficulty"}.get(call.name, "plan")
        if (call.name, call.purpose) == ("curate", "train") and call.inputs["difficulty"]:
            self.difficulty[call.round] = str(call.inputs["difficulty"][0])
        if call.name in ("curate", "wave"):
            self.samples[call.round, call.purpose] = (call.config.sample.n, call.config.sample.max_tokens)
        metrics: dict[str, float] = {}
        if call.name == "update":
            self.updates[call.round] = (str(call.inputs["policy"][0]), call.config.lr)
            metrics = {"policy/entropy": self.entropy[call.round]}
        if (call.name, call.purpose) == ("score", "train") and call.round in self.reward:
            metrics = {"reward/mean": self.reward[call.round]}
        summary = {"groups": 1, "pass_at": {"1": {"value": self.pass_at_1[call.round]}}}
        ref = Ref(table, f"{call.name}-{call.round}-{call.purpose}".encode().hex()[:64])
        return Outcome(
            call.name,
            call.purpose,
            call.round,
            ref,
            reused=False,
            seconds=0.0,
            report={"summary": summary, "metrics": metrics},
        )


def policy_after(index: int) -> str:
    return f"checkpoints/{f'update-{index}-train'.encode().hex()[:64]}" if index else str(START.policy)


def trained(session: Rehearsal, plan: Recipe) -> Trained:
    return train(session, plan, START)  # pyright: ignore[reportArgumentType] - has no store


def test_a_round_outside_ends_the_run_before_the_next_and_names_the_best_policy_so_far() -> None:
    session = Rehearsal([0, 0.9, 0.5, 0.04, 0.9], pass_at_1=[0.1, 0.4, 0.3, 0.9, 0.9])
    plan = recipe([{"metric": "policy/entropy", "min": 0.05}], evaluate=EVERY_ROUND)
    end = trained(session, plan)
    assert end.stopped == "round 3: policy/entropy = 0.04 is below the guard's min = 0.05"
    assert set(session.updates) == {1, 2, 3}
    assert (end.best_round, str(end.best)) == (1, policy_after(1))  # by the selection suite, not the round before
    assert end.figures == {}


def test_without_evaluations_between_the_best_is_the_round_before() -> None:
    session = Rehearsal([0, 0.9, 0.5, 0.04])
    end = trained(session, recipe([{"metric": "policy/entropy", "min": 0.05}]))
    assert (end.best_round, str(end.best)) == (2, policy_after(2))
    assert trained(Rehearsal([0, 0.01]), recipe([{"metric": "policy/entropy", "min": 0.05}])).best_round == 0


def test_going_back_takes_the_best_policy_and_its_difficulty_and_goes_on_with_other_settings_once() -> None:
    guard = {"metric": "policy/entropy", "min": 0.05, "then": "back", "changes": {"update.lr": 3e-5}}
    session = Rehearsal([0, 0.9, 0.5, 0.04, 0.9, 0.04], pass_at_1=[0.1, 0.4, 0.3, 0.0, 0.2, 0.0])
    end = trained(session, recipe([guard], rounds=6, evaluate=EVERY_ROUND, update={"lr": 1e-4}))
    assert session.updates == {
        1: (policy_after(0), 1e-4),
        2: (policy_after(1), 1e-4),
        3: (policy_after(2), 1e-4),
        4: (policy_after(1), 3e-5),  # back at round 1, the best
        5: (policy_after(4), 3e-5),
    }
    assert session.difficulty[4] == session.difficulty[2] != session.difficulty[3]
    remark = (
        "round 3: policy/entropy = 0.04 is below the guard's min = 0.05: went back to the policy of round 1, "
        "and on with update.lr = 3e-05"
    )
    assert session.said == list(end.remarks) == [remark]
    assert end.stopped == "round 5: policy/entropy = 0.04 is below the guard's min = 0.05"  # a second time is the end
    assert end.best_round == 1


def test_a_round_whose_rollouts_are_outside_is_not_learned_from() -> None:
    session = Rehearsal([0.5] * 5, pass_at_1=[0.1, 0.4, 0.0, 0.5, 0.5], reward={1: 0.5, 2: 0.0, 3: 0.5, 4: 0.5})
    guard = {"metric": "reward/mean", "min": 0.1, "then": "back", "changes": {"update.lr": 3e-5}}
    end = trained(session, recipe([guard], evaluate=EVERY_ROUND, update={"lr": 1e-4}))
    assert session.updates == {
        1: (policy_after(0), 1e-4),
        3: (policy_after(1), 3e-5),
        4: (policy_after(3), 3e-5),
    }
    assert (end.stopped, len(end.remarks)) == ("", 1)
    stopped = trained(Rehearsal([0.5] * 5, reward={1: 0.5, 2: 0.0}), recipe([{"metric": "reward/mean", "min": 0.1}]))
    assert stopped.stopped == "round 2: reward/mean = 0 is below the guard's min = 0.1"
    assert str(stopped.best) == policy_after(1)


def test_a_run_within_its_guards_is_the_run_without_them() -> None:
    guards = [
        {"metric": "policy/entropy", "min": 0.05, "max": 2.0},
        {"metric": "policy/entropy", "max": 0.1, "from_round": 5},
        {"metric": "reward/mean", "min": 9.0},  # not measured here
    ]
    guarded, plain = Rehearsal([0, 0.9, 0.5, 0.4, 0.9]), Rehearsal([0, 0.9, 0.5, 0.4, 0.9])
    with_guards, without = trained(guarded, recipe(guards)), trained(plain, recipe([]))
    assert (guarded.updates, with_guards.stopped, with_guards.remarks) == (plain.updates, "", ())
    assert with_guards == without
    assert run_name(recipe(guards)) == run_name(recipe([]))
    assert lasting(recipe(guards)) == lasting(recipe([], rounds=9))
    assert "guards" not in recipe([]).model_dump(mode="json")


@pytest.mark.parametrize(
    ("guard", "message"),
    [
        ({"metric": "policy/entropy"}, "a guard needs min or max"),
        ({"metric": "entropy", "min": 0}, "no round records 'entropy'; did you mean policy/entropy"),
        ({"metric": "reward/mean", "min": float("nan")}, "finite"),
        ({"metric": "reward/mean", "min": 0, "then": "back"}, "the same settings lead to the same place"),
        ({"metric": "reward/mean", "min": 0, "changes": {"update.lr": 1}}, 'changes need then = "back"'),
        ({"metric": "reward/mean", "min": 0, "then": "back", "changes": {"lr": 1}}, "STAGE.KEY"),
        ({"metric": "reward/mean", "min": 0, "then": "back", "changes": {"update.lrr": 1}}, "no setting lrr"),
        ({"metric": "reward/mean", "min": 0, "then": "back", "changes": {"updat.lr": 1}}, "there is no stage 'updat'"),
        ({"metric": "reward/mean", "min": 0, "then": "back", "changes": {"update.lr": -1}}, "greater than 0"),
        ({"metric": "policy/kl_ref", "max": 1}, "measured only with a reference policy"),
    ],
)
def test_a_guard_that_cannot_be_kept_is_refused(guard: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe([guard])


def test_what_changes_how_a_plan_is_sampled_holds_for_its_escalations() -> None:
    changes = [
        {"stage": "curate", "from_round": 2, "changes": {"sample.n": 4, "sample.max_tokens": 32}},
        {"stage": "escalate", "round": 3, "changes": {"sample.n": 6}},
    ]
    session = Rehearsal([0.5] * 9)
    trained(session, recipe([], rounds=3, escalate=[1], overrides=changes, curate={"sample": {"n": 8}}))
    plans = {key: sample for key, sample in session.samples.items() if key[0] and key[1] in ("train", "escalate1")}
    assert plans == {
        **dict.fromkeys([(1, "train"), (1, "escalate1")], (8, 96)),
        **dict.fromkeys([(2, "train"), (2, "escalate1")], (4, 32)),
        (3, "train"): (4, 32),
        (3, "escalate1"): (6, 32),
    }
