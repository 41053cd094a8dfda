"""Names and addresses in MLflow: parameters, metrics and models as it takes them, and its first page, without MLflow.

MLflow 3.17 keeps a saved view as a tag of the experiment (`mlflow.sharedViewState.KEY`): a JSON object of name and
times whose `state` is another, as text, of filter, order and columns. An address that names the key opens with it; one
that names a filter or an order of its own does not.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from gradus.data.records import JsonObject
from gradus.tasks.preflight.access import Login, call_mlflow
from gradus.tasks.tracking.metric_table import MAX_ON_RUN, METRICS, Kind, find, section_of

T = TypeVar("T")

MAX_KEY_CHARS = 250
MAX_PARAM_CHARS = 6000
"""MLflow refuses longer values."""
MAX_TAG_CHARS = 8000
PARAMS_PER_CALL = 100
METRICS_PER_CALL = 1000

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_\-. /]")
_NOT_IN_MODELS = re.compile(r"[^A-Za-z0-9_\- ]")

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
    *("eval/first/gain", "eval/first/pass_at_1", "total/rounds", "total/tokens_sampled"),
    *("total/gpu_s", "total/cpu_s", "total/cost"),
)


def flat_params(config: JsonObject, prefix: str = "") -> dict[str, str]:
    """Return nested settings as `outer.inner` -> text, a component always under the same name, long values cut.

    A component is its name, with its settings below; a list of named ones is their names, with each one's settings.

    >>> flat_params({"update": {"lr": 0.1, "clip": [0.2, 0.3]}, "loss": {"name": "clip", "low": 0.2}})
    {'update.lr': '0.1', 'update.clip': '[0.2, 0.3]', 'loss': 'clip', 'loss.low': '0.2'}
    >>> flat_params({"rewards": [{"name": "numeric"}, {"name": "../mine.py:close", "within": 2}]})
    {'rewards': 'numeric, ../mine.py:close', 'rewards.mine.py_close.within': '2'}
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{_key(str(key))}"[:MAX_KEY_CHARS]
        if isinstance(value, Mapping) and value:
            found |= {name: str(value["name"])} if _names([value]) else {}
            found |= _settings(value, name)
        elif isinstance(value, list) and (names := _names(value)):
            found[name] = cut(", ".join(names), MAX_PARAM_CHARS)
            parts = [part for part in value if isinstance(part, Mapping)]
            for part, own in zip(parts, names, strict=True):
                found |= _settings(part, f"{name}.{_key(own)}")
        else:
            found[name] = cut(value if isinstance(value, str) else json.dumps(value, default=str), MAX_PARAM_CHARS)
    return found


def _key(text: str) -> str:
    """A part of a parameter's name; of a path its file alone, since MLflow refuses names with relative parts."""
    return _clean(text.rpartition("/")[2]).strip(". ") or "unnamed"


def _settings(value: JsonObject, name: str) -> dict[str, str]:
    """Return the settings in a mapping below its name, without the name of a component."""
    named = bool(_names([value]))
    return flat_params({key: part for key, part in value.items() if not (named and key == "name")}, f"{name}.")


def _names(values: Sequence[object]) -> list[str]:
    """The names of components; empty unless every value has one of its own."""
    names = [value.get("name") for value in values if isinstance(value, Mapping)]
    texts = [name for name in names if isinstance(name, str)]
    return texts if len(set(texts)) == len(values) else []


def cut(text: str, max_chars: int) -> str:
    """The text, or its beginning and a mark; what cannot be encoded is replaced."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def metric_name(name: str) -> str:
    """A metric's name in the characters that MLflow takes, a path without empty or relative parts.

    >>> metric_name("eval/pass@8"), metric_name("reward//my file.py:fn")
    ('eval/pass_at_8', 'reward/my file.py_fn')
    """
    parts = [_clean(part.replace("@", "_at_")).strip() for part in name.split("/")]
    return "/".join(part for part in parts if part.strip(".")) or "unnamed"


def shown_name(name: str) -> str:
    """Return a stage's metric as its own run shows it: the section first, see gradus.tasks.tracking.metric_table.

    >>> shown_name("reward/mean"), shown_name("eval/aime/pass@8"), shown_name("perf/step_s")
    ('2 reward/mean', '1 eval/pass_at_8', '8 time/step_s')
    """
    return "/".join(map(metric_name, section_of(metric_name(name))))


def run_metric_name(stage: str, purpose: str, name: str) -> str:
    """Return a metric as the run of a command shows it, where each name has one writer in a round.

    Behind the name stand the stage, for times, since every stage measures its own, and the purpose unless it is
    training; of evaluations the suite unless it is the first.

    >>> run_metric_name("score", "train", "reward/mean"), run_metric_name("score", "refill1", "reward/mean")
    ('2 reward/mean', '2 reward/mean.refill1')
    >>> run_metric_name("rollout", "eval", "perf/tokens_per_s")
    '8 time/tokens_per_s.rollout.eval'
    >>> run_metric_name("rollout", "eval-aime", "length/mean")
    '5 length/mean.eval-aime'
    >>> run_metric_name("evaluate", "eval-aime", "eval/aime/gain"), run_metric_name("evaluate", "eval", "eval/own/gain")
    ('1 eval/gain.aime', '1 eval/gain')
    """
    behind = [stage] if name.startswith("perf/") else []
    if name.startswith("eval/"):
        behind.append(purpose.partition("-")[2])
    elif purpose != "train":
        behind.append(purpose)
    return ".".join((shown_name(name), *(metric_name(part).replace("/", ".") for part in behind if part)))


def kind_of(purpose: str, name: str) -> Kind:
    """Return what a call of a stage is for; an evaluation on its own is that of the first suite."""
    family = purpose.partition("-")[0]
    if family in ("train", ""):
        return "eval" if name.startswith("eval/") else "train"
    if family == "eval":
        return "eval" if purpose == family else "suite"
    return "profile" if family == "profile" else "wave"


def is_on_run(stage: str, purpose: str, name: str) -> bool:
    """Return whether a metric is also on the run of the command; one that the table lacks is, if it is of training."""
    metric, kind = find(name), kind_of(purpose, name)
    if metric is None:
        return kind == "train"
    return kind in metric.on_run and (not metric.on_run_of or stage in metric.on_run_of)


@cache
def reserved() -> frozenset[str]:
    """Return the names that a run of a command always has room for: those that no recipe makes more of."""
    return frozenset(
        run_metric_name(stage, kind, metric.name)
        for metric in METRICS
        for kind in metric.on_run
        if kind in ("train", "eval") and not metric.is_open
        for stage in metric.stages
    )


def has_room(name: str, others: list[str]) -> bool:
    """Return whether a run may show a metric, and note it among the `others` if it is none of the reserved ones."""
    if name in reserved() or name in others:
        return True
    if len(others) >= MAX_ON_RUN - len(reserved()):
        return False
    others.append(name)
    return True


def model_name(run: str, model: str) -> str:
    """The registered model's name: every run has its own, so that runs do not fight about `champion`."""
    return _NOT_IN_MODELS.sub("_", f"{run}-{model}")


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in lists of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _clean(text: str) -> str:
    return _NOT_IN_KEYS.sub("_", text)


def saved_view() -> str:
    """Return the value of the tag: trainings only, the newest first, with what they gained and cost."""
    metrics = [f"metrics.`{shown_name(name)}`" for name in _COLUMNS]
    columns = [*metrics, _DESCRIPTION]
    state = {
        "searchFilter": ONLY_TRAININGS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {**{name: 7 * len(name) for name in metrics}, _DESCRIPTION: 400},
    }
    times = {"createdAt": _CREATED_MS, "updatedAt": _CREATED_MS}
    return json.dumps({"name": "Trainings", **times, "state": json.dumps(state)})


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
    experiment: Any = (found or {}).get("experiment")
    if not experiment:
        return experiment_address(shown)
    identifier: str = experiment["experiment_id"]
    view = next((tag["value"] for tag in experiment.get("tags", ()) if tag["key"] == VIEW_TAG), None)
    if not is_current(view):
        body = {"experiment_id": identifier, "key": VIEW_TAG, "value": saved_view()}
        call_mlflow(server, "experiments/set-experiment-tag", login, body)
    return experiment_address(shown, identifier)
