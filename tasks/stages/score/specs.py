"""A reward of a recipe as a judge process receives it."""

from gradus.models.rewards import RewardSpec, resolve
from gradus.tasks.config.score import RewardConfig


def spec_of(reward: RewardConfig, max_chars: int = 0) -> RewardSpec:
    """Return the spec of a pinned reward; ValueError if it does not take its settings."""
    return resolve(
        reward.name,
        reward.settings,
        sha256=reward.source_sha256,
        modules=reward.modules,
        variables=reward.variables,
        isolated=reward.isolated,
        max_chars=max_chars,
    )
