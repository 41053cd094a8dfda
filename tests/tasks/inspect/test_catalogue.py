"""The catalogue: everything registered has a sentence of its own, settings with type, default and doc."""

import re

import pytest

from gradus.components import KINDS
from gradus.data.errors import UsageError
from gradus.flows.console.methods_table import render_methods, render_settings
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.method_list import listed_settings, selected
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.inspect.catalogue import REQUIRED, Component, catalogue
from gradus.tasks.stages.registry import STAGES

FOUND = catalogue()
ALL = [(kind, name, component) for kind, named in FOUND.items() for name, component in named.items()]


def test_every_stage_and_every_kind_is_listed() -> None:
    assert list(FOUND["stage"]) == list(STAGES)
    assert all(FOUND[kind] for kind in KINDS)


def test_each_has_a_sentence_that_no_other_has() -> None:
    sentences = [component["what"] for _, _, component in ALL]
    assert all(len(sentence) > 10 for sentence in sentences)
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize(("kind", "name", "component"), ALL, ids=[f"{kind} {name}" for kind, name, _ in ALL])
def test_every_setting_has_type_default_and_doc(kind: str, name: str, component: Component) -> None:
    for key, setting in component["settings"].items():
        assert all(setting[part] for part in ("type", "default", "what")), (name, key)
        assert not re.search(
            r"Pydantic|Undefined|Annotated|Any|typing\.|<class|object at 0x|\n", " ".join(map(str, setting.values()))
        )


def test_settings_are_those_of_the_models_and_functions() -> None:
    update = FOUND["stage"]["update"]["settings"]
    assert {key for key in update if "." not in key} == set(UpdateConfig.model_fields)
    assert update["lr"] == {
        "type": "float, more than 0",
        "default": "5e-05",
        "what": "Learning rate after warm-up.",
    }
    assert FOUND["stage"]["wave"]["settings"]["wave.name"]["default"] == REQUIRED
    assert FOUND["stage"]["curate"]["settings"]["sample.n"]["type"] == "int, at least 1, at most 100,000"
    assert list(FOUND["filter"]["pass_rate"]["settings"]) == ["low", "high", "unmeasured"]
    assert list(FOUND["reward"]["format"]["settings"]) == ["pattern"]
    assert FOUND["reward"]["exact"]["what"].startswith("1 if")


def test_a_line_for_each_method_and_component(capsys: pytest.CaptureFixture[str]) -> None:
    render_methods(selected())
    lines = capsys.readouterr().out.splitlines()
    dapo = next(line for line in lines if line.startswith("dapo "))
    assert dapo.split()[1:5] == ["method", "arXiv", "2503.14476", "known"]
    assert any(line.startswith("clip ") and "tests/models/objectives/test_" in line for line in lines)
    assert {name for kind, name, _ in ALL if kind != "stage"} <= {line.split()[0] for line in lines}


@pytest.mark.slow
def test_all_about_one(capsys: pytest.CaptureFixture[str]) -> None:
    render_methods(selected("fixed_length"), "fixed_length")
    shown = capsys.readouterr().out
    for text in ("1 / (rows * limit)", "length_tokens", "models/objectives/", "tests/models/objectives/"):
        assert text in shown
    assert """--set 'update.aggregation={name = "fixed_length", length_tokens = ...}'""" in shown
    render_methods(selected("dapo"), "dapo")
    shown = capsys.readouterr().out
    assert "gradus train demo --method dapo --dry-run" in shown
    assert 'update.aggregation            "token_mean"' in shown


@pytest.mark.slow
def test_a_search() -> None:
    found = selected("2503.14476")
    assert {"dapo", "clip_higher"} <= set(found["method"])
    assert set(selected(kind="loss", paper="1707.06347")) == {"loss"}
    with pytest.raises(UsageError, match="there is no kind 'los'") as refused:
        selected(kind="los")
    assert "loss" in refused.value.hint
    with pytest.raises(UsageError, match="nothing matches drgrpo") as refused:
        selected("drgrpo")
    assert "dr_grpo" in refused.value.hint


@pytest.mark.slow
def test_settings_of_a_recipe_of_one_of_its_keys_and_of_a_stage() -> None:
    every = listed_settings()
    assert list(every) == ["recipe", *STAGES]
    recipe = every["recipe"]["settings"]
    assert {key for key in recipe if "." not in key} == set(Recipe.model_fields)
    assert "roles.NAME.policy" in recipe
    assert not [key for key in recipe if ".update." in key]  # those of the stage
    assert recipe["escalate"]["type"] == "list of int, at least 1, at most 1,000"
    assert recipe["phase.0.waves"]["type"] == "list"
    (phase,) = listed_settings("phase").values()
    assert {key.partition(".")[0] for key in phase["settings"]} == {"phase"}
    assert {"phase.0.until.metric", "phase.0.waves.0.name"} <= phase["settings"].keys()
    assert listed_settings("curate") == {"curate": FOUND["stage"]["curate"]}
    with pytest.raises(UsageError, match="there is no stage 'phases', and no such key of a recipe") as refused:
        listed_settings("phases")
    assert refused.value.hint == "did you mean phase?"


def test_settings_that_a_stage_fills_in_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    render_settings(FOUND["stage"])
    shown = capsys.readouterr().out
    assert "source_sha256" not in shown
    assert "minibatch_groups" in shown
