"""What MLflow opens on: the saved view as its pages read it, the runs that it finds, the address that is printed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest

from gradus.tasks.preflight import access
from gradus.tasks.tracking.client import tracking_uri
from gradus.tasks.tracking.names import (
    ONLY_TRAININGS,
    QUERY,
    VIEW_TAG,
    address,
    experiment_address,
    is_current,
    saved_view,
)
from tests.patience import quiet_port

Run = Any
NewRun = Callable[[str], Run]


def test_the_installed_pages_know_the_tag_the_address_and_every_key_of_the_view() -> None:
    scripts = Path(mlflow.__file__).parent / "server" / "js" / "build" / "static" / "js"
    pages = "".join(path.read_text() for path in scripts.glob("*.js"))
    view = json.loads(saved_view())
    keys = json.loads(view["state"]).keys()
    assert {"name", "createdAt", "updatedAt", "state"} == view.keys()
    # As in the list of what a view may hold, and as an address may say it.
    assert [key for key in keys if f'"{key}"' not in pages] == []
    assert '"mlflow.sharedViewState."' in pages
    for pair in QUERY.split("&"):
        key, _, value = pair.partition("=")
        assert f'"{key}"' in pages
        assert value == "gradus" or f'"{value}"' in pages


@pytest.mark.slow
def test_the_view_finds_trainings_and_neither_stages_nor_single_verbs(new_run: NewRun) -> None:
    training, verb = new_run("seen"), new_run("a-verb")
    for run, name in ((training, "train"), (verb, "score")):
        run.start(verb=name)
        run.score(1)
        run.journal.run_finished(status="finished")
        run.drain()
    client = mlflow.MlflowClient(tracking_uri(training.home))
    experiment = client.get_experiment_by_name("gradus")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], ONLY_TRAININGS, max_results=1000)
    names = {run.info.run_name for run in found}
    assert "seen" in names
    assert not names & {"a-verb", "score-1"}
    assert experiment.tags[VIEW_TAG] == saved_view()


def test_columns_are_metrics_of_the_table_and_the_description() -> None:
    state = json.loads(json.loads(saved_view())["state"])
    assert state["selectedColumns"] == [
        "metrics.`1 eval/gain`",
        "metrics.`1 eval/pass_at_1`",
        "metrics.`9 total/rounds`",
        "metrics.`9 total/tokens_sampled`",
        "metrics.`9 total/gpu_s`",
        "metrics.`9 total/cpu_s`",
        "metrics.`9 total/cost`",
        "attributes.`Description`",
    ]
    assert state["columnOrder"] == state["selectedColumns"]
    assert state["columnWidths"].keys() == set(state["columnOrder"])
    assert state["searchFilter"].startswith("tags.`gradus.stage` IS NULL")


def test_a_view_that_a_person_changed_is_left_alone() -> None:
    ours = json.loads(saved_view())
    assert is_current(saved_view())
    assert is_current(json.dumps({**ours, "updatedAt": ours["createdAt"] + 1, "state": "{}"}))
    assert not [old for old in (None, "", "deflate;x", "[]", json.dumps({**ours, "state": "{}"})) if is_current(old)]


def test_the_address_has_no_credentials_and_needs_no_answer() -> None:
    nobody = f"http://ann:secret-1@127.0.0.1:{quiet_port()}/base/"
    opened = re.sub(r":[0-9]+/", ":1/", address(nobody, {}))
    assert opened == f"http://127.0.0.1:1/base/#/experiments?{QUERY}"
    assert experiment_address("https://host", "7") == f"https://host/#/experiments/7/runs?{QUERY}"


def test_an_experiment_of_an_earlier_version_is_given_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def answered(uri: str, path: str, login: Any, body: Any = None) -> dict[str, Any]:
        asked.append((path, body))
        return {"experiment": {"experiment_id": "3", "tags": [{"key": "other", "value": "1"}]}}

    monkeypatch.setattr("gradus.tasks.tracking.names.call_mlflow", answered)
    assert address("http://host:5000", {}) == experiment_address("http://host:5000", "3")
    assert [path for path, _ in asked] == [
        "experiments/get-by-name?experiment_name=gradus",
        "experiments/set-experiment-tag",
    ]
    assert asked[1][1] == {"experiment_id": "3", "key": VIEW_TAG, "value": saved_view()}


def test_a_server_that_answers_nonsense_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access.call_mlflow(f"http://127.0.0.1:{quiet_port()}", "experiments/search", {}) is None
