"""How our facts are spelled where MLflow restricts the spelling: parameters, metrics, models. Pure functions."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from gradus.data.records import JsonObject

T = TypeVar("T")

MAX_PARAM_CHARS = 6000
"""MLflow refuses longer values."""
MAX_TAG_CHARS = 8000
PARAMS_PER_CALL = 100
METRICS_PER_CALL = 1000

_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_\-. /]")
_NOT_IN_MODELS = re.compile(r"[^A-Za-z0-9_\- ]")


def flat_params(config: JsonObject, prefix: str = "") -> dict[str, str]:
    """Nested settings as `outer.inner` -> text; lists as JSON, long values cut.

    >>> flat_params({"update": {"lr": 0.1, "clip": [0.2, 0.3]}, "name": "demo"})
    {'update.lr': '0.1', 'update.clip': '[0.2, 0.3]', 'name': 'demo'}
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{_clean(str(key))}"
        if isinstance(value, Mapping) and value:
            found.update(flat_params(value, f"{name}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            found[name] = cut(text, MAX_PARAM_CHARS)
    return found


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


def run_metric_name(stage: str, purpose: str, name: str) -> str:
    """A metric's name on the run as a whole, where each name has one writer in a round.

    Every stage measures its own time, so `perf/` is divided by stage; the purpose comes first unless it is training.

    >>> run_metric_name("score", "train", "reward/mean"), run_metric_name("score", "hint1", "reward/mean")
    ('reward/mean', 'hint1/reward/mean')
    >>> run_metric_name("rollout", "train", "perf/tokens_per_s")
    'perf/rollout/tokens_per_s'
    >>> run_metric_name("rollout", "eval-aime", "length/mean")
    'eval/aime/length/mean'
    >>> run_metric_name("evaluate", "eval-aime", "eval/aime/gain")
    'eval/aime/gain'
    """
    spelled = metric_name(name)
    if spelled.startswith("perf/"):
        spelled = f"perf/{metric_name(stage)}/{spelled.removeprefix('perf/')}"
    if purpose in ("", "train"):
        return spelled
    kind, _, suite = purpose.partition("-")
    if kind == "eval" and spelled.startswith("eval/"):
        return spelled
    return "/".join(metric_name(part) for part in (kind, suite, spelled) if part)


def model_name(run: str, model: str) -> str:
    """The registered model's name: every run has its own, so that runs do not fight about `champion`."""
    return _NOT_IN_MODELS.sub("_", f"{run}-{model}")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of at most `size`."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _clean(text: str) -> str:
    return _NOT_IN_KEYS.sub("_", text)
