"""Every way in which a run samples: before the first round, in its rounds with their overrides, in its evaluations."""

from collections.abc import Iterator
from dataclasses import dataclass

from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import stage_config, wave_config
from gradus.flows.recipe.course.phases import settled
from gradus.flows.recipe.reading import with_guards_changes
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.rollout import RolloutConfig

_BY_LENGTH = ("length", "prompt_tokens")
"""Filters of curate that leave out problems whose prompt is long."""


@dataclass(frozen=True)
class Sampling:
    """A sampling of problems: the key of a recipe that sets it, and the settings that hold for it."""

    setting: str
    sample: SampleConfig
    rollout: RolloutConfig
    suite: str = ""
    """Name of the evaluation suite that is sampled; empty for the training problems."""
    filtered: bool = False
    """True if a filter of the round leaves out problems by the length of their prompts."""


def samplings(recipe: Recipe) -> Iterator[Sampling]:
    """Yield every sampling that a run can use, guards' changes included; there may be duplicates."""
    for each in map(with_guards_changes, settled(recipe)):
        yield from _samplings(each)


def _samplings(recipe: Recipe) -> Iterator[Sampling]:
    if recipe.profile is not None:
        yield Sampling("profile", recipe.profile, stage_config(recipe, "rollout", 0, recipe.rollout))
    for place, suite in enumerate(recipe.evaluate.suites):
        key = f"evaluate.suites.{place}.sample" if len(recipe.evaluate.suites) > 1 else "evaluate.sample"
        for index in {0, *changing_rounds(recipe, "rollout")}:
            rollout = stage_config(recipe, "rollout", index, suite.rollout(recipe.rollout))
            yield Sampling(key, suite.sample, rollout, suite.name)
    names = [wave.short for wave in recipe.all_waves]
    for index in changing_rounds(recipe, "curate", *names, "rollout"):
        curate = stage_config(recipe, "curate", index, recipe.curate)
        rollout = stage_config(recipe, "rollout", index, recipe.rollout)
        filtered = any(chosen.name in _BY_LENGTH for chosen in curate.filters)
        yield Sampling("curate.sample", curate.sample, rollout, filtered=filtered)
        for wave in recipe.all_waves:
            sample = wave_config(recipe, wave, index).sample
            yield Sampling(f"{wave.short}.sample", sample, rollout, filtered=filtered)


def changing_rounds(recipe: Recipe, *stages: str) -> list[int]:
    """Return the rounds with new settings of the stages: the first, and those in which an override begins or ends."""
    if not recipe.rounds:
        return []
    own = [o for o in recipe.overrides if o.stage in stages]
    back = {o.round + 1 for o in own if o.round is not None and o.round < recipe.rounds}
    return sorted({1, *back, *(max(1, o.first_round) for o in own)})
