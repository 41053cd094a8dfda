"""A wave's plan role by role and use by use: which stages run, on what, called how; what the update is handed."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import GateError, UsageError
from gradus.data.lake.store import Ref
from gradus.flows.loop.inputs import run_name
from gradus.flows.loop.training import train
from gradus.flows.recipe.ahead import overlapping
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import wave_config
from gradus.flows.recipe.reading import load_recipe, parse_recipe
from gradus.tasks.runtime.calls import Call, Outcome
from tests.flows.recipe.test_guards import START, Rehearsal, recipe

JUDGE = {"roles": {"judge": {"policy": "bundled"}, "self": {}}, "score": {"judge": {"rewards": ["verdict"]}}}
MODEL = Ref("checkpoints", "1" * 8)


@dataclass
class Judged(Rehearsal):
    """A rehearsal whose waves plan rows of these roles and uses."""

    uses: dict[str, list[str]] = field(default_factory=dict)
    calls: list[tuple[str, str, dict[str, Any], Any]] = field(default_factory=list)
    made: dict[Ref, str] = field(default_factory=dict)
    skipped: str = ""
    """The purpose of updates without signal."""

    def stage(self, call: Call) -> Outcome:
        found = super().stage(call)
        self.made[found.ref] = f"{call.name} {call.purpose}"
        named = {role: [self.made.get(ref, str(ref)) for ref in refs] for role, refs in call.inputs.items()}
        self.calls.append((f"{call.purpose}-{call.name}", call.config.__class__.__name__, named, call.facts))
        if call.name == "update" and call.purpose == self.skipped:
            return replace(found, report={"summary": {"skipped_updates": 1}, "metrics": {}})
        if call.name == "wave":
            return replace(found, report={"summary": {"groups": 1, "uses": self.uses}, "metrics": {}})
        return found


def rehearsed(uses: dict[str, list[str]]) -> dict[str, tuple[dict[str, Any], Any]]:
    session = Judged([0.5] * 9, uses=uses)
    plan = recipe([], rounds=1, waves=["refill"], **JUDGE)
    train(session, plan, replace(START, roles={"judge": MODEL}))  # pyright: ignore[reportArgumentType] - has no store
    return {name: (inputs, facts) for name, _, inputs, facts in session.calls if not name.startswith("eval")}


def test_a_judge_samples_and_is_scored_apart_and_the_update_has_none_of_its_rows() -> None:
    calls = rehearsed({"judge": ["judge"]})
    inputs, facts = calls["refill1-rollout"]
    assert (inputs["policy"], facts) == (
        [str(MODEL)],
        {"round": 1, "use": "judge", "role": "judge", "origin": "judge"},
    )
    assert calls["refill1-score"][0]["rollouts"] == ["rollout refill1"]
    for stage in ("train-update", "train-difficulty"):
        assert (calls[stage][0]["rollouts"], calls[stage][0]["scores"]) == (["rollout train"], ["score train"])


def test_several_roles_and_uses_are_stages_by_their_names() -> None:
    calls = rehearsed({"self": ["critique"], "policy": ["learn", "judge"], "judge": ["judge"]})
    sampled = {name: facts for name, (_, facts) in calls.items() if name.endswith("rollout") and "refill" in name}
    assert sampled == {
        "refill1-critique-rollout": {"round": 1, "role": "self", "use": "critique"},  # by the policy: rows of its own
        "refill1-learn-rollout": {"round": 1},
        "refill1-policy-judge-rollout": {"round": 1, "use": "judge"},
        "refill1-judge-judge-rollout": {"round": 1, "role": "judge", "use": "judge", "origin": "judge"},
    }
    judged = {name: inputs["rollouts"] for name, (inputs, _) in calls.items() if "score" in name and "refill" in name}
    assert judged == {
        "refill1-learn-score": ["rollout refill1-learn"],
        "refill1-policy-judge-score": ["rollout refill1-policy-judge"],
        "refill1-judge-judge-score": ["rollout refill1-judge-judge"],
    }  # nothing scores a critique
    assert calls["train-update"][0]["rollouts"] == ["rollout train", "rollout refill1-learn"]
    assert calls["train-update"][0]["scores"] == ["score train", "score refill1-learn"]


def test_a_recipe_writes_scores_of_uses_below_score_and_keeps_its_identity_without() -> None:
    plain = parse_recipe({"name": "x"}, "x.toml")
    assert not {"roles", "scores"} & plain.model_dump().keys()
    body = {"name": "x", "score": {"rewards": ["math"], "judge": {"rewards": ["verdict"], "retries": 2}}}
    found = parse_recipe(body, "x.toml")
    assert [each.name for each in found.score.rewards] == ["math"]
    assert (found.scores["judge"].rewards[0].name, found.scores["judge"].retries) == ("verdict", 2)
    again = parse_recipe(found.model_dump(mode="json"), "run.json")
    assert again == found
    stored = {**found.model_dump(mode="json"), "score": {"judge": {"retries": 3}}}
    assert (
        parse_recipe(stored, "x").scores["judge"].retries,
        len(parse_recipe(stored, "x").scores["judge"].rewards),
    ) == (3, 1)
    set_ = load_recipe("demo", ["score.judge.rewards=['verdict']", "roles.judge.policy=bundled"])
    assert set_.scores["judge"].rewards[0].name == "verdict"
    assert run_name(set_) != run_name(load_recipe("demo"))
    assert wave_config(set_, set_.all_waves[0], 1).roles["judge"].n == 8
    assert "roles" not in wave_config(plain, plain.all_waves[0], 1).model_dump()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"roles": {"policy": {}}}, "'policy' cannot be a name"),
        ({"roles": {"a-b": {}}}, "'a-b' cannot be a name"),
        ({"score": {"learn": {"rewards": []}}}, "'learn' cannot be a name"),
        ({"score": {"judge": {"reward": []}}}, "there is no setting scores.judge.reward"),
        ({"roles": {"judge": {"polcy": "bundled"}}}, "there is no setting roles.judge.polcy"),
        ({"roles": {"judge": {"policy": "nowhere"}}}, "roles.judge.policy: nowhere is no folder"),
        ({"roles": {"judge": {"sample": {"max_tokens": 4096}}}}, "roles.judge.sample.max_tokens = 4096 leaves no room"),
        (
            {"roles": {"judge": {"rollout": {"engine": "openai", "server": {"api_key_variable": "HOME"}}}}},
            "server.api_key_variable names the environment variable HOME",
        ),
        ({"score": {"judge": {"rewards": ["nowhere.py:f"]}}}, "there is no file"),
        ({"waves": ["verify"]}, r"wave verify plans rows of the role verifier, .* add \[roles.verifier\] to it"),
        ({"waves": ["reads.py:again"]}, r"the wave reads.py:again reads the column reward of rows of the use judge"),
    ],
)
def test_what_a_role_or_a_use_cannot_be_is_said_before_anything_starts(
    body: dict[str, Any], said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reads.py").write_text(
        "from gradus.components import component\n\n"
        '@component("wave", needs=("judge: about", "judge: reward"))\ndef again(round, rng):\n    """Ask again."""\n'
    )
    with pytest.raises(UsageError, match=said):
        check_recipe(parse_recipe({"name": "x", **body}, "x.toml"), tmp_path / "lake")


def test_a_role_that_nobody_plans_is_allowed(tmp_path: Any) -> None:
    found = parse_recipe({"name": "x", **JUDGE}, "x.toml")
    assert isinstance(found, Recipe)
    check_recipe(found, tmp_path / "lake")


@dataclass
class Evaluated(Judged):
    """A rehearsal that keeps the seed and the facts of each stage of an evaluation, and the shards of its rollouts."""

    shards: list[int] = field(default_factory=list)
    drawn: dict[str, list[tuple[Any, Any]]] = field(default_factory=dict)

    def stage(self, call: Call) -> Outcome:
        if call.purpose.startswith("eval"):
            self.drawn.setdefault(f"{call.purpose}-{call.name}", []).append((call.seed, call.facts))
            self.shards += [call.config.shard_rows] if call.name == "rollout" else []
        return super().stage(call)


def test_an_evaluation_draws_the_same_after_every_round_with_the_seed_of_its_suite() -> None:
    session, wave = Evaluated([0.5] * 9, uses={"policy": ["learn"]}), {"name": "rethink", "times": 1}
    suite = {"every": 1, "seed": 5, "waves": [wave], "shapes": ["best"]}
    shards = {"shard_rows": {"schedule": "steps", "values": [8, 16], "at": [2]}}  # no schedule reaches an evaluation
    train(session, recipe([], rounds=2, evaluate=suite, rollout=shards), START)  # pyright: ignore[reportArgumentType] - has no store
    of_wave = {"wave": 1, "call": 0}
    assert session.shards == [8] * 6
    assert session.drawn == {
        "eval-curate": [(5, {})] * 3,
        "eval-rollout": [(5, {})] * 3,
        "eval-score": [(5, {})] * 3,
        "eval-heldout-rethink1-wave": [(5, of_wave)] * 3,
        "eval-heldout-rethink1-rollout": [(5, {})] * 3,
        "eval-heldout-rethink1-score": [(5, {})] * 3,
        "eval-shape": [(5, {})] * 3,
        "eval-evaluate": [(5, {"suite": "heldout"})] * 3,
    }


TRAINED = {**JUDGE, "roles": {"judge": {"policy": "bundled", "update": {"lr": 1e-3}}, "self": {"update": {}}}}


def trained(uses: dict[str, list[str]], rounds: int, skipped: str = "") -> tuple[Any, dict[str, Any]]:
    session = Judged([0.5] * 9, uses=uses, skipped=skipped)
    plan = recipe([], rounds=rounds, waves=["refill"], **TRAINED)
    start = replace(START, roles={"judge": MODEL, "self": START.policy})
    found = train(session, plan, start)  # pyright: ignore[reportArgumentType] - has no store
    return found, {name: inputs for name, _, inputs, _ in session.calls if name.endswith("update")}


def test_a_role_learns_from_what_it_sampled_and_samples_the_next_round_with_it() -> None:
    found, calls = trained({"judge": ["judge"], "policy": ["learn"]}, 1)
    assert calls["judge-update"] == {
        "rollouts": ["rollout refill1-judge"],
        "scores": ["score refill1-judge"],
        "policy": [str(MODEL)],
        "reference": [],
    }
    assert calls["train-update"]["rollouts"] == ["rollout train", "rollout refill1-learn"]
    assert found.roles.keys() == {"judge"}  # nobody asked the other one
    assert trained({"judge": ["judge"]}, 2)[1]["judge-update"]["policy"] == ["update judge"]


def test_a_role_whose_rows_have_no_signal_stays_as_it_was() -> None:
    found, calls = trained({"judge": ["judge"]}, 2, skipped="judge")
    assert (calls["judge-update"]["policy"], found.roles) == ([str(MODEL)], {})


def test_a_trained_role_whose_rows_nothing_judges_ends_the_run_in_a_sentence() -> None:
    with pytest.raises(GateError, match="nothing judges what it sampled for the use critique") as error:
        trained({"judge": ["judge", "critique"]}, 1)
    assert error.value.hint == "add [score.critique] with rewards to the recipe"


def test_a_trained_role_that_overlaps_corrects_for_its_older_model() -> None:
    plan = overlapping(recipe([], overlap=1, **TRAINED))
    found = plan.roles["judge"].learning("judge")
    assert found is not None
    assert found.correction is not None
    assert (found.role, found.max_age, found.correction.name) == ("judge", 1, "token_truncated")


_TEXT = {"engine": "openai", "server": {"url": "http://127.0.0.1:9/v1", "tokens": False}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": {}}, "roles.judge.update: nothing judges the rows that it samples"),
        ({"roles": {"judge": {"update": {}, "rollout": _TEXT}}}, "roles.judge: server.tokens = false samples text"),
        ({"roles": {"judge": {"update": {"loss": "distil"}}}}, "roles.judge: the objective needs a teacher"),
        ({"roles": {"judge": {"update": {"shapes": ["win_rate"]}}}, "score": {"other": {}}}, "which nothing judges"),
    ],
)
def test_a_role_that_could_not_be_trained_is_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    body = {"name": "x", **TRAINED, **changes}
    with pytest.raises(UsageError, match=said):
        check_recipe(parse_recipe(body, "x.toml"), tmp_path)
