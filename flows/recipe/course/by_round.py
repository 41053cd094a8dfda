"""The settings of the stages of a round: those of the recipe with what changes them in that round."""

from typing import TypeVar

from gradus.components.chosen import MeasureConfig, TrackerConfig, WaveConfig, chosen_in
from gradus.components.settings import Config
from gradus.flows.recipe.assignments import set_dotted
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.past import NOTHING, Past
from gradus.flows.recipe.course.schedules import set_scheduled
from gradus.flows.recipe.setting_faults import valid
from gradus.flows.recipe.suites import Suite
from gradus.tasks.config.curation import CurateConfig, HintConfig, SampleConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.config.rounds import MeasuringConfig, ShapingConfig, TrackingConfig, tracked_by
from gradus.tasks.stages.registry import stage_spec

C = TypeVar("C", bound=Config)


def stage_config(recipe: Recipe, stage: str, round_index: int, base: C, past: Past = NOTHING, origin: str = "") -> C:
    """Return the settings of a stage in a round: the recipe's with its overrides, and with those of recorded guards."""
    overrides = [
        each for each in (*recipe.overrides, *past.overrides()) if each.stage == stage and each.holds_in(round_index)
    ]
    if not recipe.schedules and not overrides:
        return base
    body = base.model_dump(mode="json")
    if recipe.schedules:
        set_scheduled(body, stage, recipe, past, round_index)
    for override in overrides:
        for key, value in override.changes.items():
            set_dotted(body, key, value)
    return valid(type(base), body, origin or f"the settings of {stage}")


def curate_config(recipe: Recipe, index: int, past: Past = NOTHING) -> CurateConfig:
    """Return the settings of a round's first plan, with the prompts that it counts and the keys of trackers."""
    found = stage_config(recipe, "curate", index, recipe.curate, past)
    prompt = {"prompt": recipe.rollout.prompt} if found.counts_tokens else {}
    return found.model_copy(update={**prompt, "tracked": tracked_by(recipe.keepers, chosen_in(found))})


def hint_config(recipe: Recipe, index: int, past: Past = NOTHING) -> HintConfig:
    """Return the settings of hints that are built in a round, with the keys of trackers."""
    found = stage_config(recipe, "hint", index, recipe.hint, past)
    return found.model_copy(update={"tracked": tracked_by(recipe.keepers, chosen_in(found))})


def wave_config(recipe: Recipe, wave: WaveConfig, index: int, past: Past = NOTHING, origin: str = "") -> PlanningConfig:
    """Return the settings of a wave in a round: sampled and drawn as that round's plan is, with its own overrides."""
    curate, max_age = curate_config(recipe, index, past), 0
    if wave.reads("stored"):  # the update after this wave learns from its rows
        max_age = max(0, stage_config(recipe, "update", index, recipe.update, past).max_age - recipe.overlap)
    roles = recipe.sampled_roles.items()
    base = PlanningConfig(
        wave=wave,
        sample=curate.sample,
        curate=curate.model_copy(update={"sample": SampleConfig(), "hint_level": 0, "hinted_frac": 1.0}),
        max_age=max_age,
        roles={n: stage_config(recipe, f"roles.{n}", index, r, past).sample for n, r in roles},
    )
    found = stage_config(recipe, wave.short, index, base, past, origin)
    tracked = tracked_by(recipe.keepers, chosen_in(found))
    return found.model_copy(update={"curate": found.curate.model_copy(update={"tracked": tracked})})


def tracker_config(
    recipe: Recipe, tracker: TrackerConfig, index: int, past: Past = NOTHING, origin: str = ""
) -> TrackingConfig:
    """Return the settings of a tracker in a round, with its own overrides."""
    found = stage_config(recipe, tracker.short, index, TrackingConfig(tracker=tracker), past, origin)
    return found.model_copy(update={"tracked": tracked_by(recipe.keepers, [found.tracker])})


def measure_config(
    recipe: Recipe, measure: MeasureConfig, index: int, past: Past = NOTHING, origin: str = ""
) -> MeasuringConfig:
    """Return the settings of a measure in a round: computed as that round's update is, with its own overrides."""
    update = stage_config(recipe, "update", index, recipe.update, past)
    role = recipe.roles.get(measure.role)
    base = MeasuringConfig(
        measure=measure,
        prompt=(role or recipe).rollout.prompt,
        micro_tokens=update.micro_tokens,
        dtype=update.dtype,
        device=update.device,
    )
    return stage_config(recipe, measure.short, index, base, past, origin)


def shaping_config(recipe: Recipe, update: UpdateConfig) -> ShapingConfig:
    """Return the settings of the batch of an update; UsageError for a column that no component makes."""
    tracked = tracked_by(recipe.keepers, (*update.shapes, *update.parts))
    return update.shaping.model_copy(update={"tracked": tracked})


def recipe_of_suite(recipe: Recipe, suite: Suite, past: Past = NOTHING) -> Recipe:
    """Return a recipe as an evaluation has it: the suite's sampling, judging, waves and measures, and plain settings.

    Only overrides and changes of guards for rollout, score and evaluate apply.
    """
    overrides = (*recipe.overrides, *past.overrides())
    named = (*recipe.sampled_roles, *(measure.role for measure in suite.measures))
    changes: dict[str, object] = {
        "curate": CurateConfig(sample=suite.sample),
        "rollout": suite.rollout(recipe.rollout),
        "score": suite.score or recipe.score,
        "escalate": (),
        "waves": suite.waves,
        "trackers": (),
        "measures": suite.measures,
        "roles": {name: role for name, role in recipe.roles.items() if name in named},
        "schedules": {},
        "overrides": tuple(each for each in overrides if each.stage in ("rollout", "score", "evaluate")),
    }
    return recipe.model_copy(update=changes)


def suite_shaping(suite: Suite) -> ShapingConfig:
    """Return the settings with which the rows that a suite evaluates are decided."""
    return ShapingConfig(shapes=suite.shapes, tracked=tracked_by(suite.measures, suite.shapes))


def section(recipe: Recipe, stage: str) -> Config:
    """Return the settings that a recipe has for a stage, before changes of a round."""
    table, _, name = stage.partition(".")
    if name:
        return recipe.roles[name] if table == "roles" else recipe.scores[name]
    if stage in recipe.stages:
        return valid(stage_spec(stage).settings, recipe.stages[stage], stage)
    return getattr(recipe, stage)
