"""First page of MLflow: a saved view of the experiment that shows trainings, and the address that asks for it.

MLflow 3.17 keeps a saved view as a tag of the experiment (`mlflow.sharedViewState.KEY`): a JSON object of name and
times whose `state` is another, as text, of filter, order and columns. An address that names the key opens with it; one
that names a filter or an order of its own does not. Does not import MLflow.
"""

import json
from typing import NotRequired, TypedDict, cast
from urllib.parse import urlsplit

from gradus.tasks.preflight.access import Login, call_mlflow
from gradus.tasks.tracking.names import shown_name

EXPERIMENT = "gradus"
KEY = "gradus"
VIEW_TAG = f"mlflow.sharedViewState.{KEY}"
QUERY = f"workflowType=machine_learning&viewStateShareKey={KEY}"
"""Without it the page shows traces of agents."""

ONLY_TRAININGS = "tags.`gradus.stage` IS NULL AND tags.`gradus.verb` = 'train'"
"""Runs that are neither of a stage nor of a single verb."""
_CREATED_MS = 1_795_392_000_000
"""A constant: the tag is the same whoever writes it."""
_DESCRIPTION = "attributes.`Description`"
_COLUMNS = (
    "eval/first/gain",
    "eval/first/pass_at_1",
    "total/rounds",
    "total/tokens_sampled",
    "total/gpu_s",
    "total/cpu_s",
    "total/cost",
)


class _Tag(TypedDict):
    key: str
    value: str


class _Experiment(TypedDict):
    """Answer of MLflow about an experiment."""

    experiment_id: str
    tags: NotRequired[list[_Tag]]


def saved_view() -> str:
    """Return the value of the tag: trainings only, the newest first, with what they gained and cost."""
    metrics = [f"metrics.`{shown_name(name)}`" for name in _COLUMNS]
    state = {
        "searchFilter": ONLY_TRAININGS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [*metrics, _DESCRIPTION],
        "columnOrder": [*metrics, _DESCRIPTION],
        "columnWidths": {**{name: 7 * len(name) for name in metrics}, _DESCRIPTION: 400},
    }
    envelope = {"name": "Trainings", "createdAt": _CREATED_MS, "updatedAt": _CREATED_MS, "state": json.dumps(state)}
    return json.dumps(envelope)


def is_current(value: str | None) -> bool:
    """Return whether a tag holds the view, or one that a user has changed since."""
    try:
        found = json.loads(value or "")
        return value == saved_view() or found["updatedAt"] > found["createdAt"]
    except (ValueError, TypeError, KeyError):
        return False


def experiment_address(server: str, experiment: str = "") -> str:
    """Return the address of the experiment's runs, opened on trainings; of all experiments if its id is not known.

    >>> experiment_address("http://127.0.0.1:5000/", "1")
    'http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=gradus'
    """
    place = f"experiments/{experiment}/runs" if experiment else "experiments"
    return f"{server.rstrip('/')}/#/{place}?{QUERY}"


def address(server: str, login: Login) -> str:
    """Return the address to open in a browser, asking the server for the experiment; without credentials.

    An experiment of an earlier version is given the view.
    """
    parts = urlsplit(server)
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    found = call_mlflow(server, f"experiments/get-by-name?experiment_name={EXPERIMENT}", login)
    if not found or "experiment" not in found:
        return experiment_address(shown)
    experiment = cast("_Experiment", found["experiment"])
    identifier = experiment["experiment_id"]
    views = [tag["value"] for tag in experiment.get("tags", ()) if tag["key"] == VIEW_TAG]
    if not is_current(views[0] if views else None):
        body = {"experiment_id": identifier, "key": VIEW_TAG, "value": saved_view()}
        call_mlflow(server, "experiments/set-experiment-tag", login, body)
    return experiment_address(shown, identifier)
