"""Where a training with a budget ends: the loop on a session that makes up what stages cost."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.lake.store import Ref
from gradus.flows.loop.comparing.budget import Asked, Budget, parse_budget
from gradus.flows.loop.comparing.methods import checked
from gradus.flows.loop.measuring import spent
from gradus.flows.loop.round.outcomes import Beginning, Trained
from gradus.flows.loop.training import train
from gradus.flows.recipe.reading import parse_recipe
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import ComputedSeconds
from gradus.tasks.runtime.calls import Call, Outcome

TABLES = {"rollout": "rollouts", "score": "scores", "update": "checkpoints", "evaluate": "evaluations"}
EVALUATION_TOKENS = 10**9


class Costs:
    """A session whose rollouts take the tokens that they are said to, and every stage a second."""

    store: Any = None

    def __init__(self, tokens: dict[str, int], *, reused: bool = False) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.outcomes: list[Outcome] = []
        self.tokens, self.reused = tokens, reused

    def stage(self, call: Call) -> Outcome:
        self.calls.append((call.name, call.round, call.purpose))
        figures = {"suite": "heldout", "pass_at": {"1": {"value": 0.5}}}
        told = {
            "rollout": {"tokens": self.tokens.get(call.purpose, EVALUATION_TOKENS)},
            "wave": {"groups": 1},
            "evaluate": figures,
        }
        ref = Ref(
            TABLES.get(call.name, "plan"), f"{call.name}{call.round}{call.purpose}".encode().hex().ljust(8, "0")[:64]
        )
        report: Any = {"summary": told.get(call.name, {})}
        self.outcomes.append(
            Outcome(call.name, call.purpose, call.round, ref, reused=self.reused, seconds=1.0, report=report)
        )
        return self.outcomes[-1]

    def halt(self) -> None: ...

    def say(self, text: str) -> None: ...

    def make_room(self, made: Mapping[int, Ref], weights: set[int], states: set[int]) -> None: ...


class Refilling(Costs):
    """A session whose rollouts take ten tokens each, four in the first plan of a round and 1,000 in each of a wave."""

    def __init__(self) -> None:
        super().__init__({})
        self.planned: list[int] = []
        self.said: list[str] = []

    def stage(self, call: Call) -> Outcome:
        found = super().stage(call)
        report: Any = found.report
        if call.name == "wave":
            self.planned.append(min(1000, call.facts.get("fits", 1000)))
            report = {"summary": {"groups": self.planned[-1]}, "metrics": {"data/wave_rollouts": self.planned[-1]}}
        if call.name == "rollout" and found.purpose != "eval":
            rows = 4 if found.purpose == "train" else self.planned[-1]
            report = {"summary": {"tokens": 10 * rows, "rows": rows}}
        self.outcomes[-1] = replace(found, report=report)
        return self.outcomes[-1]

    def say(self, text: str) -> None:
        self.said.append(text)


def trained(
    budget: Budget, tokens: dict[str, int], tmp_path: Any, costs: Costs | None = None, **recipe: Any
) -> tuple[Trained, Costs, Any]:
    body = {"name": "x", "rounds": 3, "profile": {"n": 1}, "escalate": [1], **recipe}
    start = Beginning(Ref("checkpoints", "0" * 8), Ref("problems", "1" * 8), {"heldout": Ref("problems", "2" * 8)})
    costs, computed = costs or Costs(tokens), ComputedSeconds(tmp_path)
    parsed = parse_recipe(body, "x.toml")

    def amounts() -> tuple[int, float]:
        return spent(costs.outcomes, computed)

    def ends(index: int) -> bool:
        return budget.is_reached(index, *amounts())

    def room(_round: int, _purpose: str, tokens: float) -> int | None:
        left = budget.left(amounts()[0])
        return None if left is None else int(left // tokens)

    return train(costs, parsed, start, ends, room), costs, amounts()


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0, 1])
@given(profile=st.integers(1, 50), bare=st.integers(1, 30), hinted=st.integers(0, 30), amount=st.integers(1, 200))
@settings(max_examples=40)
def test_a_training_ends_after_the_first_round_that_reaches_its_tokens(
    overlap: int, profile: int, bare: int, hinted: int, amount: int, tmp_path_factory: Any
) -> None:
    tokens = {"profile": profile, "train": bare, "escalate1": hinted}
    budget = Budget(unit="tokens", amount=amount)
    found, costs, amounts = trained(budget, tokens, tmp_path_factory.getbasetemp(), overlap=overlap)
    rounds = 0
    while profile + rounds * (bare + hinted) < amount:
        rounds += 1
    assert found.rounds == rounds
    assert amounts[0] == profile + rounds * (bare + hinted)  # nothing made ahead is thrown away
    assert [index for name, index, _ in costs.calls if name == "evaluate"] == list(dict.fromkeys([0, rounds]))
    assert [index for name, index, _ in costs.calls if name == "update"] == list(range(1, rounds + 1))


@pytest.mark.parametrize(("unit", "amount"), [("tokens", 1000), ("tokens", 20), ("tokens", 25_000), ("rounds", 1)])
def test_a_wave_draws_what_fits_the_tokens_that_are_left(unit: Any, amount: int, tmp_path: Any) -> None:
    # A round of 40 tokens, then calls of 10,000 each, four at most: 40,040 if nothing bounds them.
    session, waves = Refilling(), [{"name": "refill", "times": 4}]
    budget = Budget(unit=unit, amount=amount)
    found, _, (tokens, _) = trained(budget, {}, tmp_path, session, escalate=[], waves=waves, profile=None)
    assert found.rounds == 1
    if unit == "rounds":
        assert (tokens, session.said) == (40_040, [])
        return
    assert tokens == max(40, amount)  # a rollout costs ten: the last one that fits is drawn
    left = {1000: [960, 0], 20: [0], 25_000: [4_960, 0]}[amount]
    drawn = [f"samples {each // 10:,} rollouts in place of 1,000: no more fit the budget" for each in left]
    assert session.said == [f"round 1: the wave refill {text}" for text in drawn]


def test_seconds_are_those_of_all_stages_but_evaluations(tmp_path: Any) -> None:
    found, costs, amounts = trained(
        Budget(unit="seconds", amount=20), {"profile": 1, "train": 1, "escalate1": 1}, tmp_path
    )
    others = [name for name, _, purpose in costs.calls if purpose != "eval"]
    assert amounts[1] == len(others)
    before = [name for name, index, purpose in costs.calls if purpose != "eval" and index < found.rounds]
    assert len(before) < 20 <= len(others)


def test_rounds_of_the_recipe_count_without_a_budget(tmp_path: Any) -> None:
    start = Beginning(Ref("checkpoints", "0" * 8), Ref("problems", "1" * 8), {"heldout": Ref("problems", "2" * 8)})
    for rounds in (0, 1, 3):
        recipe = parse_recipe({"name": "x", "rounds": rounds, "escalate": []}, "x.toml")
        assert train(Costs({"train": 1}), recipe, start).rounds == rounds


def test_budgets_are_read_from_texts() -> None:
    assert parse_budget("tokens=2e6") == Budget(unit="tokens", amount=2_000_000)
    assert parse_budget(" rounds = 3 ") == Budget(unit="rounds", amount=3)
    assert str(parse_budget("seconds=3600")) == "3,600 seconds"


@pytest.mark.parametrize(("assignments", "rounds"), [([], 18), (["rounds=2"], 2), (["update.lr=1e-4"], 18)])
def test_without_a_budget_a_recipe_is_trained_for_its_own_rounds(
    tmp_path: Path, assignments: list[str], rounds: int
) -> None:
    ready = checked(Home(tmp_path), Asked(["demo"], seeds=2, set=assignments))
    assert ready.budget == Budget(unit="rounds", amount=rounds)
    assert [method.recipe.rounds for method in ready.methods] == [rounds]
