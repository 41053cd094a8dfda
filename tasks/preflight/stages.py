"""The checks that stages declare: of settings with the inputs of each role, before anything starts.

check_stage(ROLLOUT, RolloutConfig(engine="vllm"), {"plan": ["a.jsonl"]})    # the package vllm is not installed
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gradus.components.settings import Config
from gradus.components.stage import Stage
from gradus.data.errors import UsageError
from gradus.models.rewards import UnknownRewardError, resolve
from gradus.tasks.config.curation import CurateConfig, HintConfig
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.preflight.abilities import check_engine
from gradus.tasks.preflight.checks import check_components, check_source

Named: TypeAlias = Mapping[str, Sequence[str]]
"""Inputs named by the user, by role."""


def check_stage(stage: Stage, settings: Config, inputs: Named) -> None:
    """Refuse components that cannot be used, and what the stage itself would certainly refuse."""
    check_components(settings)
    stage.refuse(settings, inputs)


def check_ingest(config: IngestConfig, inputs: Named) -> None:
    """Raise UsageError for a source that is not there, or a policy without tokens to count."""
    check_source(inputs["source"][0], config)
    if bool(inputs.get("policy")) != bool(config.max_prompt_tokens):
        raise UsageError("--policy goes with --set max_prompt_tokens=N", hint="give both, or neither")


def check_curate(config: CurateConfig, inputs: Named) -> None:
    """Raise UsageError for a policy without tokens to count, or the other way round."""
    if bool(inputs.get("policy")) != config.counts_tokens:
        raise UsageError("--policy goes with --filter prompt_tokens:high=N", hint="give both, or neither")


def check_hint(config: HintConfig, inputs: Named) -> None:
    """Raise UsageError if no level of a hint is asked for."""
    del inputs
    if not config.fractions:
        raise UsageError("hint.fractions is empty, so there would be no hints", hint="give it one share for each level")


def check_rollout(config: RolloutConfig, inputs: Named) -> None:
    """Raise UsageError if the engine cannot be used here."""
    del inputs
    check_engine(config)


def check_score(config: ScoreConfig, inputs: Named) -> None:
    """Raise UsageError if a reward's settings cannot be used, such as a pattern that is not a regular expression."""
    del inputs
    for reward in config.rewards:
        try:
            resolve(reward.name, reward.settings)
        except UnknownRewardError as error:
            raise UsageError(str(error), hint="list the rewards with `gradus methods`") from None
