"""What there is to choose from: every registered function with its first sentence, every setting with its doc."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from data.filters import FILTERS
from data.hints import STRATEGIES
from data.samplers import SAMPLERS
from models.advantages import ADVANTAGES
from models.losses import AGGREGATIONS, LOSSES
from models.rewards import REWARDS
from tasks.registry import STAGES

Entries = dict[str, str]


def catalogue() -> dict[str, Entries]:
    """Kind -> name -> first sentence; the settings of a stage are listed as `stage NAME`."""
    found = {
        "filter": _sentences(FILTERS),
        "sampler": _sentences(SAMPLERS),
        "hint strategy": _sentences(STRATEGIES),
        "reward": _sentences(REWARDS),
        "advantage": _sentences(ADVANTAGES),
        "loss": _sentences(LOSSES),
        "aggregation": _sentences(AGGREGATIONS),
    }
    for spec in STAGES.values():
        fields = spec.config.model_fields
        found[f"stage {spec.name}"] = {
            name: f"{field.description or ''} [{field.get_default(call_default_factory=True)}]"
            for name, field in fields.items()
        }
    return found


def _sentences(functions: Mapping[str, Callable[..., Any] | Any]) -> Entries:
    return {name: (inspect.getdoc(function) or "").partition("\n")[0] for name, function in functions.items()}
