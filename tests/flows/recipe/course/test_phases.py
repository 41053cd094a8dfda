"""Phases of a training: their ends, settings and problems in the loop, and phases that cannot end."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref
from gradus.flows.loop.training import train
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.past import Past
from gradus.flows.recipe.course.phases import following_rounds, phase_of
from gradus.flows.recipe.reading import load_recipe, recipe_from
from gradus.tasks.runtime.calls import Call
from tests.flows.recipe.test_guards import START, Rehearsal, policy_after, recipe

OTHER = Ref("problems", "c" * 8)
WITH_OTHER = replace(START, phases=(START.problems, OTHER))


@dataclass
class Drawn(Rehearsal):
    """A rehearsal that notes the problems and the sampling of each round; rollouts have `tokens` tokens in all."""

    tokens: int = 0
    problems: dict[int, Ref] = field(default_factory=dict)

    def stage(self, call: Call) -> Any:
        found = super().stage(call)
        if (call.name, call.purpose) == ("curate", "train"):
            self.problems[call.round] = call.inputs["problems"][0]
        if call.name == "rollout":
            summary: Any = {**found.summary, "tokens": self.tokens}
            return replace(found, report={**found.report, "summary": summary})
        return found


def run(session: Drawn, plan: Recipe) -> Any:
    return train(session, plan, WITH_OTHER)  # pyright: ignore[reportArgumentType] - has no store


def phases(*tables: dict[str, Any], **body: Any) -> Recipe:
    rounds = {} if body.get("rounds", 0) is None else {"rounds": body.pop("rounds", 6)}
    body.pop("rounds", None)
    return recipe_from({"name": "x", "escalate": [], **rounds, "phase": [*tables], **body}, "x.toml", [])


def test_a_phase_has_its_own_problems_and_settings_and_the_round_runs_on() -> None:
    session = Drawn([0.5] * 9)
    lr = {"schedule": "linear", "start": 8e-5, "end": 4e-5, "rounds": 3}
    second = {"rounds": 3, "problems": "bundled:train", "changes": {"update.lr": lr, "curate.sample.n": 2}}
    end = run(session, phases({"rounds": 2, "changes": {"update.lr": 1e-4}}, second, rounds=None))
    assert [session.updates[index][1] for index in range(1, 6)] == pytest.approx([1e-4, 1e-4, 8e-5, 6e-5, 4e-5])
    assert [session.samples[index, "train"][0] for index in range(1, 6)] == [8, 8, 2, 2, 2]
    assert session.problems == {**dict.fromkeys((1, 2), START.problems), **dict.fromkeys((3, 4, 5), OTHER)}
    assert (end.rounds, end.remarks) == (5, ("phase 2 of 2 began with round 3",))


def test_a_phase_ends_at_a_threshold_held_for_some_rounds_or_after_its_rounds() -> None:
    until = {"metric": "reward/mean", "min": 0.6, "patience": 2}
    plan = phases({"rounds": 4, "until": until}, {"problems": "bundled:train"})
    for reward, first in (
        ({1: 0.7, 2: 0.5, 3: 0.6, 4: 0.9}, 5),  # 3 and 4 are the two in a row, and four rounds are its bound
        ({1: 0.6, 2: 0.6, 3: 0.0}, 3),
        ({1: 0.1, 2: 0.2}, 5),
    ):
        session = Drawn([0.5] * 9, reward=reward)
        run(session, plan)
        assert [index for index, drawn in session.problems.items() if drawn == OTHER] == list(range(first, 7))


def test_a_phase_that_ends_by_tokens_ends_after_the_round_that_samples_the_last() -> None:
    session = Drawn([0.5] * 9, tokens=40)
    run(session, phases({"tokens": 100}, {"problems": "bundled:train"}, rounds=5))
    assert [index for index, drawn in session.problems.items() if drawn == OTHER] == [4, 5]  # after 120 tokens


def test_the_training_ends_with_its_last_phase() -> None:
    until = {"metric": "reward/mean", "min": 0.5}
    end = run(Drawn([0.5] * 9, reward={2: 0.9}), phases({"rounds": 1}, {"rounds": 4, "until": until}))
    assert end.rounds == 2
    assert run(Drawn([0.5] * 9), phases({"rounds": 1}, {"rounds": 2})).rounds == 3


def test_a_run_that_overlaps_decides_with_the_rounds_before_the_last() -> None:
    until = {"metric": "reward/mean", "min": 0.5}
    plan = phases({"rounds": 4, "until": until}, {"problems": "bundled:train"}, overlap=1, update={"max_age": 1})
    session = Drawn([0.5] * 9, reward={1: 0.1, 2: 0.9})
    run(session, plan)
    assert [index for index, drawn in session.problems.items() if drawn == OTHER] == [4, 5, 6]
    assert phase_of(plan, 4, Past().after(0, {}).after(0, {"reward/mean": 0.9})) == (1, 4)


def test_a_guard_that_goes_back_leaves_the_phase_as_it_was() -> None:
    guard = {"metric": "policy/entropy", "min": 0.05, "then": "back", "changes": {"update.lr": 3e-5}}
    session = Drawn([0, 0.9, 0.9, 0.01, 0.9, 0.9, 0.9])
    second = {"problems": "bundled:train", "changes": {"update.lr": 2e-5}}
    run(session, phases({"rounds": 2, "changes": {"update.lr": 1e-4}}, second, guards=[guard]))
    assert [session.updates[index][1] for index in range(1, 7)] == [1e-4, 1e-4, 2e-5, 3e-5, 3e-5, 3e-5]
    assert session.problems[4] == OTHER


def test_overrides_win_over_a_phase_and_a_phase_over_a_schedule() -> None:
    lr = {"schedule": "linear", "start": 8e-5, "end": 4e-5, "rounds": 3}
    overrides = [{"stage": "update", "round": 3, "changes": {"lr": 9e-5}}]
    plan = phases({"rounds": 1}, {"changes": {"update.lr": 1e-5}}, update={"lr": lr}, overrides=overrides, rounds=3)
    session = Drawn([0.5] * 9)
    run(session, plan)
    assert [session.updates[index][1] for index in (1, 2, 3)] == [8e-5, 1e-5, 9e-5]


def test_cascade_grows_the_length_when_its_first_phase_is_mastered() -> None:
    plan = load_recipe("demo", methods=["cascade"])
    past = Past()
    found: list[tuple[int, int] | None] = []
    for reward in (0.9, 0.7, 0.8, 0.85, 0.9, 0.1):
        past = past.after(0, {"reward/mean": reward})
        found.append(phase_of(plan, len(past.rounds) + 1, past))
    assert found == [(0, 1), (0, 1), (0, 1), (0, 1), (1, 6), (1, 6)]  # 0.8, 0.85 and 0.9 in rounds 3 to 5
    assert plan.phase[0].changes == {"curate.sample.max_tokens": 48}  # half of the demo's 96


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([{}, {"rounds": 2}], "phase 1 has no end, and another follows it"),
        ([{"rounds": 2, "until": {"metric": "reward/mean"}}], "until needs min or max"),
        ([{"until": {"metric": "reward/mean", "min": 0.5}}], "until needs `rounds` beside it"),
        ([{"rounds": 2, "until": {"metric": "reward", "min": 0.5}}], "phase.0.until: no round records 'reward'"),
        ([{"rounds": 2, "until": {"metric": "policy/kl_ref", "max": 0.5}}], "measured only with a reference policy"),
        ([{"rounds": 0}], "phase.0.rounds"),
        ([{"rounds": 2, "changes": {"lr": 1}}], "STAGE.KEY"),
        ([{"rounds": 2, "changes": {"updat.lr": 1}}], "there is no stage 'updat'"),
        ([{"rounds": 2}, {"changes": {"update.lr": -1}}], "greater than 0"),
        ([{"rounds": 2, "changes": {"update.lr": {"schedule": "liner"}}}], "there is no schedule 'liner'"),
        ([{"rounds": 2, "waves": ["xrpo", "xrpo"]}], "the wave xrpo stands twice"),
        ([{"rounds": 2, "problems": "mine.jsonl"}], "evaluate.problems is not set"),
    ],
)  # fmt: skip
def test_a_phase_that_cannot_be_is_refused(tables: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        phases(*tables)


def test_a_dry_run_says_what_depends_on_rounds_to_come() -> None:
    until = {"metric": "reward/mean", "min": 0.5}
    by_metric = {"schedule": "by_metric", "metric": "policy/entropy", "low": 0, "high": 1, "start": 0.01, "end": 0.0}
    lr = {"schedule": "linear", "start": 8e-5, "end": 4e-5, "tokens": 1000}
    plan = phases({"rounds": 2, "until": until}, {"tokens": 9, "changes": {"update.lr": lr}}, {"rounds": 1})
    assert following_rounds(plan) == ["the end of phase 1", "the end of phase 2", "update.lr"]
    assert following_rounds(recipe([], update={"entropy_coef": by_metric})) == ["update.entropy_coef"]
    assert following_rounds(phases({"rounds": 2})) == []


def test_rounds_are_those_of_the_phases_unless_one_has_none() -> None:
    assert phases({"rounds": 2}, {"rounds": 3}, rounds=None).rounds == 5
    with pytest.raises(UsageError, match="phase 2 has no rounds, so set the recipe's `rounds`"):
        phases({"rounds": 2}, {"tokens": 100}, rounds=None)


_ENDS = st.fixed_dictionaries(
    {"rounds": st.integers(1, 4)}, optional={"tokens": st.integers(1, 25), "patience": st.integers(1, 3)}
)


@pytest.mark.slow
@given(
    st.lists(_ENDS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0.2, 0.8, None])), max_size=9),
    st.integers(0, 1),
)
def test_a_phase_ends_by_the_rounds_of_its_own_that_are_known(
    ends: list[dict[str, int]], figures: list[tuple[int, float | None]], overlap: int
) -> None:
    tables = [
        {**end, **({"until": {"metric": "reward/mean", "min": 0.5, "patience": held}} if held else {})}
        for end, held in ((dict(each), each.get("patience")) for each in ends)
    ]
    plan = phases(*({k: v for k, v in each.items() if k != "patience"} for each in tables), overlap=overlap)
    past = Past()
    for tokens, reward in figures:
        past = past.after(tokens, {} if reward is None else {"reward/mean": reward})
    place, first = 0, 1
    for index in range(1, len(figures) + 2):
        known = figures[first - 1 : index - 1 - overlap]
        end = ends[min(place, len(ends) - 1)]
        newest = [reward for _, reward in known][-end.get("patience", 99) :]
        over = index - first >= end["rounds"] or sum(tokens for tokens, _ in known) >= end.get("tokens", 999)
        over = over or (len(newest) == end.get("patience", 99) and all(reward == 0.8 for reward in newest))
        if place < len(ends) and over and index > 1:
            place, first = place + 1, index
        assert phase_of(plan, index, past) == ((place, first) if place < len(ends) else None)


@dataclass
class Profiled(Drawn):
    """A rehearsal that notes each profile: its round, policy, samples, problems, and the difficulty that it adds to."""

    profiles: dict[int, tuple[str, int, Ref]] = field(default_factory=dict)
    added_to: dict[int, list[str]] = field(default_factory=dict)

    def stage(self, call: Call) -> Any:
        index = call.round
        if (call.name, call.purpose) == ("rollout", "profile"):
            self.profiles[index] = (
                str(call.inputs["policy"][0]),
                self.samples[index, "profile"][0],
                call.inputs["problems"][0],
            )
        if (call.name, call.purpose) == ("difficulty", "profile"):
            self.added_to[index] = [str(ref) for ref in call.inputs["difficulty"]]
        return super().stage(call)


def difficulty_of(index: int, purpose: str = "train") -> str:
    return f"difficulty/{f'difficulty-{index}-{purpose}'.encode().hex()[:64]}"


def test_a_phase_of_other_problems_is_profiled_under_the_policy_that_it_begins_with() -> None:
    session = Profiled([0.5] * 9)
    run(session, phases({"rounds": 2}, {"rounds": 2, "problems": "bundled:heldout"}, profile={"n": 3}, rounds=None))
    assert session.profiles == {0: (policy_after(0), 3, START.problems), 3: (policy_after(2), 3, OTHER)}
    assert session.added_to == {0: [], 3: [difficulty_of(2)]}
    assert session.difficulty[3] == difficulty_of(3, "profile")


@pytest.mark.parametrize(
    ("asked", "profiled"),
    [({"profile": True}, {0: 3, 3: 3}), ({"profile": {"n": 5}}, {0: 3, 3: 5}), ({}, {0: 3})],
)
def test_a_phase_of_the_same_problems_is_profiled_if_it_asks(asked: dict[str, Any], profiled: dict[int, int]) -> None:
    session = Profiled([0.5] * 9)
    plan = phases({"rounds": 2}, {"rounds": 2, **asked}, profile={"n": 3}, rounds=None)
    train(session, plan, replace(START, phases=(START.problems,) * 2))  # pyright: ignore[reportArgumentType]
    assert {index: n for index, (_, n, _) in session.profiles.items()} == profiled


def test_a_phase_may_do_without_a_profile() -> None:
    session = Profiled([0.5] * 9)
    tables = ({"rounds": 1, "profile": False}, {"rounds": 1, "problems": "bundled:heldout", "profile": False})
    run(session, phases(*tables, profile={"n": 3}, rounds=None))
    assert session.profiles == {}
    with pytest.raises(UsageError, match=r"phase 2 asks for a profile, and the recipe has no \[profile\]"):
        phases({"rounds": 1}, {"rounds": 1, "profile": True})


def test_a_guard_that_goes_back_behind_the_beginning_of_a_phase_profiles_again() -> None:
    guard = {"metric": "policy/entropy", "min": 0.05, "then": "back", "changes": {"update.lr": 3e-5}}
    session = Profiled([0, 0.9, 0.9, 0.01, 0.9, 0.9, 0.9])
    plan = phases({"rounds": 2}, {"problems": "bundled:heldout"}, guards=[guard], profile={"n": 3}, rounds=5)
    run(session, plan)
    assert {index: policy for index, (policy, *_) in session.profiles.items()} == {
        0: policy_after(0),
        3: policy_after(2),
        4: policy_after(2),
    }


def test_a_run_that_overlaps_profiles_a_phase_while_the_round_before_is_learned_from() -> None:
    session = Profiled([0.5] * 9)
    plan = phases({"rounds": 2}, {"problems": "bundled:heldout"}, profile={"n": 3}, overlap=1, update={"max_age": 1})
    run(session, plan)
    assert {index: policy for index, (policy, *_) in session.profiles.items()} == {
        0: policy_after(0),
        3: policy_after(1),
    }
