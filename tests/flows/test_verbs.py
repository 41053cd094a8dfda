"""What a flow makes of wrong parameters and of errors that a user can mend."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.states import State

from gradus.data.errors import UsageError
from gradus.flows import deployed, stages
from gradus.flows.loop.reruns import Rerun
from gradus.flows.recipe.reading import parse_recipe
from gradus.flows.serve import deployments
from gradus.flows.verbs import gradus_flow, plain_parameters, refuse_unbound
from gradus.tasks.config.curation import IngestConfig

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "ingest needs source"),
        ({"sorce": "x"}, "ingest has no parameter sorce; it takes source, policy, config, out"),
        ({"source": "x", "a": 1, "b": 2}, "ingest has no parameter a, b; it takes source, policy, config, out"),
    ],
)
def test_parameters_that_do_not_fit_the_flow_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        refuse_unbound(stages.ingest, given)
    assert error.value.message == sentence
    assert "schedule" in error.value.hint


def test_parameters_that_fit_are_not_refused() -> None:
    refuse_unbound(stages.ingest, {"source": "x"})
    refuse_unbound(deployed.train, {"recipe": "demo", "set": ["rounds=1"]})


def ended(flow: Any, *given: Any, **named: Any) -> State[Any]:
    """What the function below a flow returns, without a server."""
    return flow.fn(*given, **named)


def test_an_error_of_ours_is_a_failed_state_with_the_sentence_and_the_error() -> None:
    @gradus_flow("mendable")
    def mendable(count: int) -> int:
        raise UsageError(f"{count} is too many", hint="give fewer")

    state = ended(mendable, 3)
    assert (state.type.value, state.message) == ("FAILED", "3 is too many; give fewer")
    with pytest.raises(UsageError, match="3 is too many"):
        raise state.data


def test_a_parameter_of_a_wrong_type_is_a_failed_state_that_names_it() -> None:
    state = ended(stages.curate, "problems.jsonl", config={"filters": [{"nam": "pass_rate"}]}, seed="many")
    assert state.type.value == "FAILED"
    assert state.message is not None
    assert state.message.startswith("curate: config.filters.0.name: Field required")
    assert "seed: it must be a valid integer" in state.message
    assert "\n" not in state.message


def test_parameters_arrive_as_the_declared_types_and_other_errors_keep_their_type_for_the_caller_alone() -> None:
    seen: list[Any] = []

    @gradus_flow("typed")
    def typed(count: int, ratio: float = 0.5) -> None:
        seen.append((count, ratio))
        raise KeyError("a bug")

    state: Any = typed.fn("3")
    assert (state.type.value, state.message) == ("FAILED", "'a bug'")
    with pytest.raises(KeyError, match="a bug"):
        state.result()
    assert seen == [(3, 0.5)]


def test_a_recipe_that_does_not_exist_or_a_wrong_setting_is_a_failed_state() -> None:
    missing = ended(deployed.train, "nonesuch")
    assert missing.message is not None
    assert missing.message.startswith("there is no recipe nonesuch; give a .toml file or one of: ")
    wrong = ended(deployed.train, "demo", set=["updat.lr=1"])
    assert wrong.message is not None
    assert "there is no setting updat; did you mean update?" in wrong.message


def test_a_deployment_trains_a_stored_run_as_the_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Rerun(parse_recipe({"name": "tiny"}, "a test"), "tiny-1", like="tiny-1")
    asked: list[Any] = []
    monkeypatch.setattr(deployed, "planned", lambda **_: plan)
    monkeypatch.setattr(deployed.train_flow, "fn", lambda *given, **named: asked.append((given, named)))
    ended(deployed.train, "tiny-1")
    assert asked == [((plan.recipe, "tiny-1"), {"like": "tiny-1"})]  # what its budget left out is left out again


def test_parameters_are_stored_as_json_without_the_web_framework() -> None:
    given = {"config": IngestConfig(columns={"question": "q"}), "out": None, "paths": [Path("a")], "odd": object}
    found = plain_parameters(given)
    assert found["config"]["columns"] == {"question": "q"}
    assert (found["out"], found["paths"]) == (None, ["a"])
    assert json.loads(json.dumps(found)) == found
    code = "import sys; from gradus.flows import stages; stages.ingest.serialize_parameters({'source': 'a'}); "
    code += "print('fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_parameters_are_validated_without_the_first_pydantic() -> None:
    code = "import sys; from gradus.flows import stages; state = stages.curate.fn('nowhere.jsonl', seed='3');"
    code += "print(state.message.partition(' is ')[0], 'pydantic.v1' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "nowhere.jsonl False"


def test_a_form_shows_the_parameters_although_making_the_flow_did_not_look_at_them() -> None:
    found = stages.curate.parameters
    assert list(found.properties) == [
        *("problems", "difficulty", "hints", "policy", "evaluated", "config", "seed", "out"),
    ]
    assert found.required == ["problems"]
    assert found.properties["seed"]["default"] == 0
    assert found.properties["out"]["description"] == "Also write the result here (.parquet, .jsonl or a folder)."
    form = deployed.train.to_deployment("train")._parameter_openapi_schema
    assert list(form.properties) == ["recipe", "method", "task", "rounds", "engine", "overlap", "set", "run"]
    assert form.required == deployed.train.parameters.required == ["recipe"]


def test_every_parameter_of_every_form_is_described_and_choices_are_choices() -> None:
    forms = {each.name: each._parameter_openapi_schema for each in deployments()}
    assert len(forms) >= 10
    undescribed = [
        f"{name}: {title}.{key}"
        for name, form in forms.items()
        for title, entries in [
            ("", form.properties),
            *((t, d.get("properties", {})) for t, d in form.definitions.items()),
        ]
        for key, entry in entries.items()
        if not entry.get("description")
    ]
    assert undescribed == []
    (engine, _) = forms["train"].properties["engine"]["anyOf"]
    assert engine["enum"] == ["transformers", "vllm", "openai"]
