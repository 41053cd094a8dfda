"""The versions of our own code that a stage's settings name, and of the libraries that decide a verdict.

    code_identity(UpdateConfig())     # {"advantage/grpo": "1", "loss/clip": "1", ...}

They are part of the stage's identity, beside the version of the stage itself (gradus.tasks.stages.registry). A version
is raised when a result changes for the same inputs and settings; what a version covers is kept as a digest in
tests/golden/code_versions.json, and a test fails where that moves and the version does not.
"""

from collections.abc import Mapping

from gradus.models.rewards import REWARDS
from gradus.tasks.config.base import Config
from gradus.tasks.config.curation import CurateConfig, HintConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.identity.libraries import library_versions

COMPONENTS: Mapping[str, Mapping[str, int]] = {
    "filter": {"pass_rate": 1, "zero_variance": 1, "group_variance": 1, "length": 1},
    "ranking": {"historical_std": 1, "variance": 1, "pass_rate": 1, "reward_mean": 1, "reward_variance": 1},
    "sampler": {"uniform": 1, "variance": 1},
    "hint strategy": {"prefix": 1, "tiers": 1},
    "engine": {"transformers": 1, "vllm": 1, "openai": 1},
    "reward": {name: int(reward.version) for name, reward in REWARDS.items()},
    "advantage": {"grpo": 1, "dr_grpo": 1, "rloo": 1},
    "loss": {"clip": 1},
    "aggregation": {"token_mean": 1, "sequence_mean": 1, "fixed_length": 1},
    "correction": {"weights": 1},
    "shared": {"store": 1},
}
"""Kind -> name -> version. `correction` is one function for all its names; `shared` is in every stage's identity."""


def code_identity(config: Config) -> dict[str, str]:
    """What a stage's identity holds of code: a version for each component that the settings name, and libraries."""
    named = [("shared", "store"), *_named(config)]
    found = {f"{kind}/{name}": str(COMPONENTS[kind][name]) for kind, name in named if name in COMPONENTS[kind]}
    return {**found, **_libraries(config)}


def _named(config: Config) -> list[tuple[str, str]]:
    if isinstance(config, CurateConfig):
        filters = [("filter", each.name) for each in config.filters]
        return [*filters, ("ranking", config.rank), ("sampler", config.sampler)]
    if isinstance(config, HintConfig):
        return [("hint strategy", config.strategy)]
    if isinstance(config, RolloutConfig):
        return [("engine", config.engine)]
    if isinstance(config, ScoreConfig):
        return [("reward", each.name) for each in config.rewards]
    if isinstance(config, UpdateConfig):
        correction = [("correction", "weights")] if config.correction != "none" else []
        chosen = [("advantage", config.advantage), ("loss", config.loss), ("aggregation", config.aggregation)]
        return [*chosen, *correction]
    return []


def _libraries(config: Config) -> dict[str, str]:
    if not isinstance(config, ScoreConfig):
        return {}
    rewards = [REWARDS[each.name] for each in config.rewards if each.name in REWARDS]
    found = library_versions(reward.distribution for reward in rewards if reward.distribution)
    return {f"library/{name}": version for name, version in found.items()}
