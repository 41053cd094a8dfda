"""Read a recipe: its file, methods laid over it, `--set`; refuse one that no run could carry out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from gradus.components.recorded import OF_SUITES, RECORDED
from gradus.data.errors import UsageError, shortened
from gradus.data.nearest import did_you_mean
from gradus.data.package import package_file
from gradus.data.records import JsonObject
from gradus.flows.recipe.assignments import Assignments, assign
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import measure_config, section, stage_config, tracker_config, wave_config
from gradus.flows.recipe.course.past import NOTHING
from gradus.flows.recipe.course.phases import of_each_phase, settled
from gradus.flows.recipe.course.schedules import address, as_written, refuse_unfit
from gradus.flows.recipe.guards import Override
from gradus.flows.recipe.overlays import find_overlays, overlaid, overlay_files, read_toml, with_references
from gradus.flows.recipe.sections import READABLE
from gradus.flows.recipe.setting_faults import refusal, settings_of
from gradus.flows.recipe.suites import Suite
from gradus.tasks.stages.registry import installed_names, stage_spec
from gradus.tasks.stages.score.rewards import refuse_without_verdicts

RECIPES = package_file("recipes")


def load_recipe(
    name: str, assignments: Assignments | None = None, methods: Sequence[str] = (), **changes: object
) -> Recipe:
    """Read a recipe by path or bundled name and apply methods, `a.b=c` assignments and direct changes."""
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        if name in overlay_files():
            raise UsageError(f"{name} is a method, not a recipe", hint=f"lay it over one: demo --method {name}")
        known = sorted(p.stem for p in RECIPES.glob("*.toml"))
        message = f"{path} is a folder, not a recipe" if path.is_dir() else f"there is no recipe {shortened(name)}"
        raise UsageError(message, hint=did_you_mean(name, known, f"give a .toml file or one of: {', '.join(known)}"))
    return recipe_from(read_toml(path), str(path), assignments or [], methods, **changes)


def recipe_from(
    body: dict[str, object], origin: str, assignments: Assignments, methods: Sequence[str] = (), **changes: object
) -> Recipe:
    """Return the recipe of a body with methods, `a.b=c` assignments and direct changes; `origin` names it in errors."""
    body = as_written(body)
    if methods:
        overlays = find_overlays(methods)
        own = overlaid(body, [each for each in overlays if each.is_task])
        body = overlaid(own, [each for each in overlays if not each.is_task])
        origin = f"{origin} with --method {'+'.join(methods)}"
        assign(own, assignments)
        assign(body, assignments)
        body = with_references(body, own)
    else:
        assign(body, assignments)
    body.update({k: v for k, v in changes.items() if v is not None})
    return parse_recipe(body, origin)


def parse_recipe(body: Mapping[str, object], origin: str) -> Recipe:
    """Validate a recipe with its overrides; UsageError names the first wrong key, or what could never be evaluated."""
    try:
        recipe = Recipe.model_validate(body)
        recipe = recipe.model_copy(update={"stages": {name: _declared(recipe, name, origin) for name in recipe.stages}})
        for each in of_each_phase(recipe):
            refuse_unfit(each, origin)
        refuse_unrecorded(recipe, origin)
        for each in map(with_guards_changes, settled(recipe)):
            if recipe.phase:
                Recipe.model_validate(each.model_dump(mode="json"))  # waves of its own beside the recipe's trackers
            held = [Override(stage=address(each, path)[0]) for path in each.schedules]
            for override in (*held, *each.overrides):
                _check(each, override, origin)
    except ValidationError as error:
        raise _refused(error, origin, body.get("evaluate")) from None
    refuse_unjudged(recipe)
    return recipe


def _declared(recipe: Recipe, name: str, origin: str) -> JsonObject:
    """Return the settings of a package's stage, whole; raise UsageError if a training could not run it."""
    stage = stage_spec(name)
    if not stage.when:
        raise UsageError(f"{origin}: the stage {name} cannot be in a recipe: it does not declare `when`")
    for role in stage.roles:
        if role.default == "" and role.name not in READABLE[stage.when]:
            listed = ", ".join(READABLE[stage.when])
            raise UsageError(f"{origin}: the stage {name} reads {role.name}, which is none of {listed}")
    return section(recipe, name).model_dump(mode="json")


def with_guards_changes(recipe: Recipe) -> Recipe:
    """Return the recipe with the changes of its guards in a round after the last, for checking them."""
    changes = (each for guard in recipe.guards for each in guard.overrides(recipe.rounds))
    return recipe.model_copy(update={"overrides": (*recipe.overrides, *changes)})


def _refused(error: ValidationError, origin: str, evaluate: object) -> UsageError:
    """Return the first validation error, with the keys as the user wrote them."""
    known = [*settings_of(Recipe), *installed_names(), *settings_of(Suite, "evaluate.")]
    aliases = {f"stages.{name}": name for name in installed_names()}
    if isinstance(evaluate, dict) and "suites" not in evaluate:
        known = [name for name in known if not name.startswith("evaluate.suites.")]
        aliases["evaluate.suites.0"] = "evaluate"
    return refusal(error, origin, known, aliases)


def refuse_unjudged(recipe: Recipe) -> None:
    """Raise UsageError if the recipe needs verdicts on correctness and the rewards of a round have none.

    That is in every suite, for waves and trackers that read it, and for difficulty unless it accepts rewards alone.
    """
    what = f"training {recipe.name}"
    for each in settled(recipe):
        for index in sorted({0, *(o.first_round for o in each.overrides if o.stage == "score")}):
            for suite in each.evaluate.suites:
                score = stage_config(each, "score", index, suite.score or each.score)
                refuse_without_verdicts(score, f"{what}: the suite {suite.name}")
            training = stage_config(each, "score", index, each.score)
            for reader in (*each.all_waves, *each.keepers):
                if reader.reads("correct"):
                    refuse_without_verdicts(training, f"{what}: the {reader.kind} {reader.label}")
            accepted = stage_config(each, "difficulty", index, each.difficulty).max_unjudged_frac
            refuse_without_verdicts(training, f"{what}: difficulty", accepted)


def _check(recipe: Recipe, override: Override, origin: str) -> None:
    """Refuse a change that names no stage of a training, or does not fit the settings of its stage."""
    waves = {wave.short: wave for wave in recipe.all_waves}
    trackers = {tracker.short: tracker for tracker in recipe.trackers}
    measures = {measure.short: measure for measure in recipe.measures}
    named = (*(f"roles.{name}" for name in recipe.roles), *(f"score.{use}" for use in recipe.scores))
    before = ("ingest", "hint", "curate", "rollout", "score", *waves)
    ours = (*before, *named, "difficulty", *trackers, *measures, "update", "evaluate")
    stages = (*ours, *recipe.stages)
    if override.stage not in stages:
        hint = did_you_mean(override.stage, stages, f"the stages of a training run are {', '.join(stages)}")
        raise UsageError(f"{origin}: overrides: there is no stage {override.stage!r} in it", hint=hint)
    index, where = override.first_round, f"{origin}: {override.stage}"
    if override.stage in named and "policy" in override.changes:
        raise UsageError(f"{where}: the policy of a role cannot change by round", hint="add a role with that policy")
    match override.stage:
        case "evaluate":
            for suite in recipe.evaluate.suites:
                report = stage_config(recipe, "evaluate", index, suite.report, NOTHING, where)
                Suite.model_validate({**suite.model_dump(mode="json"), "report": report})
        case "score":
            for base in (recipe.score, *(suite.score for suite in recipe.evaluate.suites if suite.score)):
                stage_config(recipe, "score", index, base, NOTHING, where)
        case name if name in waves:
            wave_config(recipe, waves[name], index, NOTHING, where)
        case name if name in trackers:
            tracker_config(recipe, trackers[name], index, NOTHING, where)
        case name if name in measures:
            measure_config(recipe, measures[name], index, NOTHING, where)
        case stage:
            stage_config(recipe, stage, index, section(recipe, stage), NOTHING, where)


def recorded(recipe: Recipe) -> tuple[str, ...]:
    """Return the metrics that rounds record, as stages write them: of a suite those of evaluations between rounds."""
    suites = [
        f"{OF_SUITES}{suite.name}/{figure}"
        for suite in recipe.evaluate.suites
        if suite.every
        for figure in (*(f"pass_at_{k}" for k in suite.report.ks), "mean_tokens", "reward_mean")
    ]
    return (*RECORDED, *suites, *(column for tracker in recipe.trackers for column in tracker.keeps))


def metrics_read(recipe: Recipe) -> list[tuple[str, str]]:
    """Return each metric that is read, with what reads it."""
    found = [(guard.metric, f"guards.{place}") for place, guard in enumerate(recipe.guards)]
    found += [(phase.until.metric, f"phase.{place}.until") for place, phase in enumerate(recipe.phase) if phase.until]
    for each in of_each_phase(recipe):
        found += [(wave.until.metric, f"until of the wave {wave.label}") for wave in each.all_waves if wave.until]
        found += [(metric, path) for path, chosen in each.schedules.items() for metric in chosen.metrics]
    return found


def refuse_unrecorded(recipe: Recipe, origin: str) -> None:
    """Raise UsageError for a metric that is read and that no round records."""
    known = recorded(recipe)
    lost = tuple(f"{each.short}." for each in recipe.trackers if not each.keeps)  # their files are checked later
    for metric, reader in metrics_read(recipe):
        if metric in known or metric.startswith(lost):
            continue
        what = f"{origin}: {reader}: no round records {shortened(metric)!r}"
        suite = metric.removeprefix(OF_SUITES).rpartition("/")[0]
        if suite in [each.name for each in recipe.evaluate.suites if not each.every]:
            raise UsageError(what, hint=f"evaluate the suite {suite} between rounds too: set `every` of it")
        raise UsageError(what, hint=did_you_mean(metric, known))
    if "policy/kl_ref" in dict(metrics_read(recipe)) and not recipe.update.needs_reference:
        what = f"{origin}: a guard, phase, wave or schedule reads policy/kl_ref"
        hint = "set update.kl_coef above 0, if only to 1e-6"
        raise UsageError(f"{what}, which is measured only with a reference policy", hint=hint)
