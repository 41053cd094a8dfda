"""Generating ahead: which policy samples which round, both sides at once, and a clear end when either fails."""

import contextvars
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.chosen import CorrectionConfig
from gradus.data.lake.store import Ref
from gradus.flows.loop.inputs import run_name
from gradus.flows.loop.round.outcomes import Beginning
from gradus.flows.loop.training import train
from gradus.flows.recipe.ahead import overlapping, run_concurrently
from gradus.flows.recipe.reading import load_recipe, parse_recipe
from gradus.tasks.host.interrupt import remember_interrupts
from gradus.tasks.runtime.calls import Call, Outcome
from gradus.tasks.runtime.supervise import HaltedError, Limits, WorkerPool

WAIT_S = 20
START = Beginning(
    policy=Ref("checkpoints", "0" * 8),
    problems=Ref("problems", "a" * 8),
    suites={"heldout": Ref("problems", "b" * 8)},
)


def nothing() -> None:
    pass


def test_both_sides_run_at_once_and_the_second_knows_the_callers_context() -> None:
    here = contextvars.ContextVar("here", default="nowhere")
    here.set("in the flow")
    met = threading.Barrier(2)

    def side() -> tuple[str, str]:
        met.wait(WAIT_S)
        return threading.current_thread().name, here.get()

    first, second = run_concurrently(side, side, nothing)
    assert first == (threading.current_thread().name, "in the flow")
    assert second[0] != first[0]
    assert second[1] == "in the flow"


@pytest.mark.parametrize("failing", ["first", "second"])
def test_a_failure_on_either_side_ends_the_other_and_is_the_one_that_is_told(failing: str) -> None:
    halted, ended = threading.Event(), threading.Event()

    def fail() -> None:
        raise ValueError("the sentence")

    def work() -> None:
        assert halted.wait(WAIT_S)
        ended.set()
        raise HaltedError("a consequence")

    sides = (fail, work) if failing == "first" else (work, fail)
    with pytest.raises(ValueError, match="the sentence"):
        run_concurrently(*sides, halted.set)
    assert ended.is_set()


def test_a_side_that_fails_after_the_other_has_ended_well_is_told_too() -> None:
    with pytest.raises(ZeroDivisionError):
        run_concurrently(nothing, lambda: 1 / 0, nothing)


def test_ctrl_c_ends_the_workers_of_both_sides(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    remember_interrupts()
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "faults")}
    try:
        with WorkerPool(tmp_path, environment, execute="jobs_for_workers:execute") as pool:

            def work(kind: str, what: str) -> dict[str, Any]:
                return pool.run(kind, {"stage": kind, "do": what}, Limits(), lambda _frac, _text: begun[kind].set())

            def interrupt() -> None:
                assert all(event.wait(WAIT_S) for event in begun.values())
                os.kill(os.getpid(), signal.SIGINT)

            begun = {kind: threading.Event() for kind in ("one", "other")}
            workers = [psutil.Process(work(kind, "count")["pid"]) for kind in begun]
            for event in begun.values():
                event.clear()
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                run_concurrently(lambda: work("one", "sleep"), lambda: work("other", "sleep"), pool.halt)
            _, alive = psutil.wait_procs(workers, timeout=15)
            assert not alive
    finally:
        remember_interrupts()
        signal.signal(signal.SIGINT, before)


@dataclass
class Rehearsal:
    """A session whose stages compute nothing: an artifact is named by its stage, round and purpose.

    With `ahead`, no update but the last ends before the next round was planned and sampled, and no next round is
    sampled before the update began: both must be going on at once.
    """

    rounds: int
    ahead: bool = False
    calls: list[tuple[str, int, str]] = field(default_factory=list)
    policy_of: dict[str, str] = field(default_factory=dict)
    learnt: dict[int, tuple[str, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.updating = [threading.Event() for _ in range(self.rounds + 1)]
        self.sampled = [threading.Event() for _ in range(self.rounds + 1)]

    def halt(self) -> None:
        raise AssertionError("nothing failed")

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None: ...

    def say(self, text: str) -> None:
        raise AssertionError(text)

    def stage(self, call: Call) -> Outcome:
        assert call.seed == (1 if call.purpose == "eval" else None)
        self.calls.append((call.name, call.round, call.purpose))
        ref = Ref(
            {"update": "checkpoints", "rollout": "rollouts"}.get(call.name, "problems"),
            digest(call.name, call.round, call.purpose),
        )
        policy = str(call.inputs["policy"][0]) if "policy" in call.inputs else ""
        if call.name == "rollout":
            self.policy_of[str(ref)] = policy
            if call.purpose == "train":
                assert not (self.ahead and call.round > 1) or self.updating[call.round - 1].wait(WAIT_S)
                self.sampled[call.round].set()
        if call.name == "update":
            self.learnt[call.round] = (policy, [self.policy_of[str(r)] for r in call.inputs["rollouts"]])
            self.updating[call.round].set()
            assert not (self.ahead and call.round < self.rounds) or self.sampled[call.round + 1].wait(WAIT_S)
        report = {"summary": {"groups": 1, "pass_at": {"1": {"value": 0.5}}}}
        return Outcome(call.name, call.purpose, call.round, ref, reused=False, seconds=0.0, report=report)


def digest(name: str, index: int, purpose: str) -> str:
    return f"{name}-{index}-{purpose}".encode().hex()[:64].ljust(8, "0")


def policy_after(index: int) -> str:
    return str(START.policy) if index < 1 else f"checkpoints/{digest('update', index, 'train')}"


shapes = st.tuples(st.integers(0, 5), st.sampled_from([(), (1,), (1, 3)]), st.integers(0, 3))


@given(shapes)
def test_each_round_is_sampled_by_the_policy_that_the_update_before_it_began_with(
    shape: tuple[int, tuple[int, ...], int],
) -> None:
    rounds, levels, every = shape
    recipe = load_recipe("demo", [f"escalate={list(levels)}", f"evaluate.every={every}"], rounds=rounds, overlap=1)
    session = Rehearsal(rounds, ahead=True)
    trained = train(session, recipe, START)
    assert {
        index: (policy_after(index - 1), [policy_after(index - 2)] * (1 + len(levels)))
        for index in range(1, rounds + 1)
    } == session.learnt
    assert str(trained.policy) == policy_after(rounds)
    evaluated = {index: p for (n, index, w), p in sampled_by(session).items() if w == "eval"}
    assert evaluated == {index: policy_after(index) for index in evaluated}
    assert set(evaluated) == {0, rounds, *(i for i in range(1, rounds + 1) if every and i % every == 0)}


@given(shapes)
def test_a_run_that_does_not_overlap_samples_with_the_newest_policy_and_stage_after_stage(
    shape: tuple[int, tuple[int, ...], int],
) -> None:
    rounds, levels, every = shape
    recipe = load_recipe("demo", [f"escalate={list(levels)}", f"evaluate.every={every}"], rounds=rounds)
    session = Rehearsal(rounds)
    train(session, recipe, START)
    newest = {
        index: (policy_after(index - 1), [policy_after(index - 1)] * (1 + len(levels))) for index in session.learnt
    }
    assert session.learnt == newest
    trained_in = [index for name, index, purpose in session.calls if purpose != "eval"]
    assert trained_in == sorted(trained_in)
    once = ["curate", "rollout", "score", *["wave", "rollout", "score"] * len(levels), "difficulty", "update"]
    for index in range(1, rounds + 1):
        assert [name for name, i, purpose in session.calls if i == index and purpose != "eval"] == once


def sampled_by(session: Rehearsal) -> dict[tuple[str, int, str], str]:
    named = {digest(*call): call for call in session.calls}
    return {named[ref.partition("/")[2]]: policy for ref, policy in session.policy_of.items()}


def test_overlap_takes_rows_one_update_old_and_corrects_them_unless_told_how() -> None:
    plain = load_recipe("demo", overlap=1)
    assert (plain.update.max_age, plain.update.correction) == (0, None)
    settled = overlapping(plain).update
    assert (settled.max_age, settled.correction) == (1, CorrectionConfig(name="token_truncated"))
    told = load_recipe("demo", ["update.correction=sequence_masked", "update.max_age=3"], overlap=1)
    assert (overlapping(told).update.max_age, overlapping(told).update.correction) == (
        3,
        CorrectionConfig(name="sequence_masked"),
    )
    assert overlapping(load_recipe("demo", ["update.correction=none"], overlap=1)).update.correction is None
    assert overlapping(load_recipe("demo")) == load_recipe("demo")


def test_a_stored_recipe_is_the_same_run_again_and_one_without_overlap_is_written_as_before() -> None:
    settled = overlapping(load_recipe("demo", overlap=1))
    again = overlapping(parse_recipe(settled.model_dump(mode="json"), "run.json"))
    assert again == settled
    assert run_name(again) == run_name(settled) != run_name(load_recipe("demo"))
    assert "overlap" not in load_recipe("demo", overlap=0).model_dump(mode="json")
