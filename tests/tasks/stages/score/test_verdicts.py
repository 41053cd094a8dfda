"""Which settings can never say what is correct, and what is refused before anything starts."""

from typing import Any

import pytest
from pydantic import ValidationError

from gradus.components.stage import Stage
from gradus.data.errors import UsageError
from gradus.tasks.config.curation import DIFFICULTY, DifficultyConfig
from gradus.tasks.config.score import EVALUATE, EvaluateConfig, RewardConfig, ScoreConfig
from gradus.tasks.stages.score.rewards import refuse_without_verdicts


def config(*names: str, decides: int | None = None, correct_at: float | None = None) -> ScoreConfig:
    rewards = tuple(RewardConfig(name=name, decides=i == decides) for i, name in enumerate(names))
    return ScoreConfig(rewards=rewards, correct_at=correct_at)


@pytest.mark.parametrize(
    "accepted",
    [
        config("numeric"),
        config("format", "math"),
        config("mine.py:f"),  # what it returns is known after the first scoring
        config("format", "mine.py:f"),
        config("mine.py:f", "mine.py:g", decides=1),
        config("mine.py:f", "mine.py:g", correct_at=1.5),
        config("format", correct_at=1.0),
        config("format", decides=0),
        config("numeric", "mine.py:f", decides=1, correct_at=0.5),
    ],
    ids=lambda c: ",".join(r.name for r in c.rewards),
)
def test_rewards_that_can_say_what_is_correct_pass(accepted: ScoreConfig) -> None:
    refuse_without_verdicts(accepted, "evaluate")


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (config("format"), r"evaluate needs to know which answers are correct, .*\(format\)"),
        (config("mine.py:f", "mine.py:g"), r"\(mine.py:f, mine.py:g\); .*decides = true"),
        (config("numeric", correct_at=0.5), "correct_at = 0.5 has no effect: numeric"),
    ],
)
def test_rewards_that_cannot_are_refused_in_a_sentence(refused: ScoreConfig, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        refuse_without_verdicts(refused, "evaluate", max_unjudged_frac=0.1)


def test_who_accepts_rewards_without_verdicts_is_not_refused() -> None:
    refuse_without_verdicts(config("format"), "profile", max_unjudged_frac=1.0)


def test_only_one_reward_decides_and_a_threshold_is_a_number() -> None:
    with pytest.raises(ValidationError, match="more than one reward has decides = true"):
        ScoreConfig(rewards=(RewardConfig(name="a.py:f", decides=True), RewardConfig(name="a.py:g", decides=True)))
    with pytest.raises(ValidationError, match="finite"):
        ScoreConfig(correct_at=float("nan"))


def test_settings_that_use_no_optional_rule_are_written_as_before_it() -> None:
    written = ScoreConfig().model_dump(mode="json")
    assert "correct_at" not in written
    assert "decides" not in written["rewards"][0]
    stated = config("a.py:f", decides=0, correct_at=0.0)
    assert stated.model_dump(mode="json")["correct_at"] == 0.0
    assert ScoreConfig.model_validate(stated.model_dump(mode="json")) == stated


def test_a_verb_of_several_stages_can_tell_their_settings_apart() -> None:
    for other in (EvaluateConfig, DifficultyConfig):
        assert not set(ScoreConfig.model_fields) & set(other.model_fields)


@pytest.mark.parametrize(("stage", "model"), [(DIFFICULTY, DifficultyConfig), (EVALUATE, EvaluateConfig)])
def test_the_gate_holds_at_its_limit_and_is_no_part_of_an_identity(stage: Stage, model: Any) -> None:
    report = {"summary": {"rollouts": 10, "unjudged": 1, "failed": 1, "first_unjudged": ["a:3"]}}
    assert stage.breach(report, model(max_unjudged_frac=0.1)) == ""
    told = stage.breach(report, model(max_unjudged_frac=0.05))
    assert told.startswith("1 of 10 rollouts (10.0%) have no verdict on correctness, more than max_unjudged_frac 5.0%")
    assert told.endswith("see the column `error` of the scores")  # nothing but a failure: a threshold would not help
    assert stage.breach({"summary": {"rows": 10}}, model()) == ""  # without these counts
    assert model(max_unjudged_frac=0.05).identified() == model().identified()
