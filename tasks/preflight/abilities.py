"""Requirements of settings on each other, on the policy and on installed packages, checked before anything starts.

    check_length(home.lake, "bundled", 4096)              # UsageError: the policy has 256 positions
    check_engine(RolloutConfig(engine="vllm"))            # UsageError: vllm is not installed
    check_learning(RolloutConfig(top_p=0.9), UpdateConfig(correction=CorrectionConfig(name="token_truncated")))

Only what a stage would certainly refuse is refused here; of a policy its config.json is read and nothing loaded.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from gradus.data.errors import BadInputError, UsageError
from gradus.models.policy_files import CONFIG, WHOLE, FileError, read_object
from gradus.tasks.config.key_variables import check_key_variable
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.preflight.checks import CHECKPOINTS, average_of, bundled, in_lake

_PACKAGES = {"vllm": ("vllm", "gpu"), "openai": ("openai", "openai")}
"""Packages that an engine needs beside ours, and the extra of pip that has them."""


def check_ks(ks: Sequence[int], n: int) -> None:
    """Raise UsageError if pass@k would need more samples of a problem than there are."""
    if max(ks) > n:
        raise UsageError(
            f"pass@{max(ks)} needs {max(ks)} samples of each problem, and n is {n}",
            hint=f"sample {max(ks)}, or ask for a smaller k",
        )


def check_length(lake: Path, policy: str, max_tokens: int, setting: str = "max_tokens") -> None:
    """Raise UsageError if not even a prompt of one token fits beside the completion into what the policy attends to."""
    limit = _positions(lake, policy)
    if limit is not None and max_tokens >= limit:
        raise UsageError(
            f"{setting} = {max_tokens} leaves no room for a prompt: the policy {policy} has {limit} positions",
            hint=f"lower {setting}, or take a policy with more",
        )


def check_engine(config: RolloutConfig) -> None:
    """Raise UsageError if an engine's package is not installed, or its server has a key it may not have."""
    check_key_variable(config.server.api_key_variable, "server.api_key_variable")
    needed = [_PACKAGES[config.engine]] if config.engine in _PACKAGES else []
    for package, extra in [*needed, *([("ray", "ray")] if config.ray.workers else [])]:
        if find_spec(package) is None:
            raise UsageError(f"the package {package} is not installed", hint=f"pip install 'gradus[{extra}]'")


def check_learning(rollout: RolloutConfig, update: UpdateConfig) -> None:
    """Raise UsageError if an update would refuse every rollout that is sampled with these settings."""
    if rollout.engine == "openai" and not rollout.server.tokens:
        raise UsageError(
            "server.tokens = false samples text without log-probs, and an update needs them",
            hint="set rollout.server.tokens=true, or train no rounds",
        )
    truncated = rollout.top_p < 1 or rollout.top_k > 0
    if truncated and update.correction is not None:
        raise UsageError(
            f"update.correction = {update.correction.label} does not hold for rollouts sampled with top_p or top_k",
            hint="set update.correction=none, or roll out with top_p = 1 and top_k = 0",
        )


def _positions(lake: Path, policy: str) -> int | None:
    """Return the context length in tokens of a policy on this machine; None if elsewhere, an adapter, or unknown."""
    text = policy if Path(policy).is_dir() else policy.rpartition("+")[2]
    found = in_lake(lake, text, CHECKPOINTS)
    return positions(lake / str(found) if found else bundled(text) or average_of(lake, text) or Path(text))


def positions(folder: Path) -> int | None:
    """Return how many tokens the policy of a folder attends to; None if it has no configuration that says so."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    try:
        body = read_object(path)
    except FileError as error:
        raise BadInputError(str(error), hint=WHOLE) from None
    config: Mapping[str, Any] = body
    limit = cast("Any", config.get("text_config") or config)
    found = limit.get("max_position_embeddings") if isinstance(limit, dict) else None
    return found if isinstance(found, int) else None
