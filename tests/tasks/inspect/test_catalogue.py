"""The catalogue: everything registered has a sentence of its own, settings with type, default and doc."""

import re
from typing import Any

import pytest

from gradus.flows.console.methods_table import render_methods
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.inspect.catalogue import REQUIRED, Component, catalogue
from gradus.tasks.stages.registry import STAGES
from tests.code_versions import versions

FOUND = catalogue()
ALL = [(kind, name, component) for kind, named in FOUND.items() for name, component in named.items()]


def test_every_stage_and_every_component_that_has_a_version_is_listed() -> None:
    assert list(FOUND["stage"]) == list(STAGES)
    named = {(kind, name) for kind, name, _ in ALL}
    for label in versions():
        kind, name = label.split("/")
        assert kind == "shared" or (kind, name) in named


def test_each_has_a_sentence_that_no_other_has() -> None:
    sentences = [component["what"] for _, _, component in ALL]
    assert all(len(sentence) > 10 for sentence in sentences)
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize(("kind", "name", "component"), ALL, ids=[f"{kind} {name}" for kind, name, _ in ALL])
def test_every_setting_has_type_default_and_doc(kind: str, name: str, component: Component) -> None:
    for key, setting in component["settings"].items():
        assert all(setting[part] for part in ("type", "default", "what")), (name, key)
        assert not re.search(
            r"Pydantic|Undefined|typing\.|<class|object at 0x|\n", " ".join(map(str, setting.values()))
        )


def test_settings_are_those_of_the_models_and_functions() -> None:
    update = FOUND["stage"]["update"]["settings"]
    assert {key for key in update if "." not in key} == set(UpdateConfig.model_fields)
    assert update["lr"] == {
        "type": "float, more than 0",
        "default": "5e-05",
        "what": "Learning rate after warm-up.",
    }
    assert FOUND["stage"]["escalate"]["settings"]["level"]["default"] == REQUIRED
    assert FOUND["stage"]["curate"]["settings"]["sample.n"]["type"] == "int, at least 1, at most 100,000"
    assert list(FOUND["filter"]["pass_rate"]["settings"]) == ["low", "high", "unmeasured"]
    assert list(FOUND["reward"]["format"]["settings"]) == ["pattern"]
    assert FOUND["reward"]["exact"]["what"].startswith("1 if")


def test_the_list_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown: dict[str, Any] = {**FOUND}
    render_methods(shown)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("reward math") for line in lines)
