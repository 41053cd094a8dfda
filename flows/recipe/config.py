"""A recipe: everything that decides a training run, as one frozen model read from one TOML file.

Order of precedence: the recipe's TOML, methods laid over it (gradus.flows.recipe.overlays), then `--set a.b=c`, in
the order given.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import eq
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, ValidationError, field_validator, model_validator

from gradus.components.chosen import ScheduleConfig, TrackerConfig, WaveConfig, chosen_in
from gradus.components.settings import MAX_ROUNDS, Config, empty, unset
from gradus.data.curation.uses import LEARN, NAME, POLICY
from gradus.data.errors import UsageError, shortened
from gradus.data.lake.schema import NO_TRACKER
from gradus.data.nearest import did_you_mean
from gradus.data.package import package_file
from gradus.data.records import JsonObject
from gradus.flows.recipe.assignments import Assignments, assign, set_dotted
from gradus.flows.recipe.course.past import NOTHING, Past
from gradus.flows.recipe.course.phases import Phase, metrics_read, of_each_phase, settled, with_rounds
from gradus.flows.recipe.course.schedules import address, as_written, lifted, refuse_unfit, set_scheduled
from gradus.flows.recipe.guards import Guard, Override
from gradus.flows.recipe.overlays import find_overlays, overlaid, overlay_files, read_toml, with_references
from gradus.flows.recipe.sections import READABLE, of_packages, of_uses
from gradus.flows.recipe.setting_faults import refusal, settings_of, valid
from gradus.flows.recipe.suites import EvaluationPlan, Suite
from gradus.tasks.config.curation import (
    MAX_LEVEL,
    CurateConfig,
    DifficultyConfig,
    HintConfig,
    SampleConfig,
)
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.config.keep import KeepConfig
from gradus.tasks.config.learning import GivenConfig, UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.config.shaping import ShapingConfig
from gradus.tasks.config.trackers import TrackingConfig, tracked_by
from gradus.tasks.config.waves import PlanningConfig, RoleConfig
from gradus.tasks.preflight.checks import name_problem
from gradus.tasks.stages.registry import STAGES, installed_names, stage_spec
from gradus.tasks.stages.score.verdicts import refuse_without_verdicts

C = TypeVar("C", bound=Config)

RECIPES = package_file("recipes")


class Recipe(Config):
    """One training run: names of components and their settings, nothing else."""

    name: str
    """Short name; part of the run's name."""
    seed: int = 0
    """Every other seed derives from it."""
    rounds: int = Field(default=10, ge=0, le=MAX_ROUNDS)
    """Rounds of curate, rollout, score, update."""
    policy: str = "bundled"
    """The starting policy: bundled, a folder, a checkpoint artifact, or a hub id with @revision."""
    problems: str = "bundled:train"
    """Problems to train on: bundled:NAME, a file, a folder or an artifact."""
    ingest: IngestConfig = Field(default_factory=IngestConfig)
    """Reading of problem files."""
    profile: SampleConfig | None = None
    """Measure difficulty before the first round, with these samples; None starts without a measurement."""
    curate: CurateConfig = Field(default_factory=CurateConfig)
    """Selection of the problems of each round."""
    hint: HintConfig = Field(default_factory=HintConfig)
    """Construction of hints."""
    escalate: tuple[Annotated[int, Field(ge=1, le=MAX_LEVEL)], ...] = (1, 2, 3)
    """Hint levels tried, in order, on groups whose every rollout failed, by the wave `escalate`; empty for none."""
    waves: tuple[WaveConfig, ...] = Field(default=(), exclude_if=empty)
    """Functions that plan further rollouts of a round from those that are back, in this order, after `escalate`."""
    trackers: tuple[TrackerConfig, ...] = Field(default=(), exclude_if=empty)
    """Functions that keep rows from round to round, whose columns filters, rankings, samplers and waves may read."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Generation of completions."""
    score: ScoreConfig = Field(default_factory=ScoreConfig)
    """Judging of completions; `[score.USE]` is that of rows of another use (judge, critique ...) of a wave's."""
    scores: dict[str, ScoreConfig] = Field(default_factory=dict, exclude_if=empty)
    """Judging of rows of other uses, by use; written as `[score.USE]`. Rows of a use without it are not judged."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict, exclude_if=empty)
    """Models that sample the rows of a wave which name them as their role, by name."""
    given: GivenConfig | None = Field(default=None, exclude_if=unset)
    """Worked solutions of the training problems, as rows of every update; none trains on the policy's own alone."""
    difficulty: DifficultyConfig = Field(default_factory=DifficultyConfig)
    """Update of the difficulty table from round to round."""
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    """Training of the policy."""
    teacher: str = Field(default="", exclude_if=empty)
    """The policy that a loss distils from, named as `policy` is; the reference is the starting policy."""
    evaluate: EvaluationPlan = Field(default_factory=EvaluationPlan)
    """Measurement of progress."""
    overlap: int = Field(default=0, ge=0, le=1, exclude_if=empty)
    """1 generates the next round while an update computes, from the policy that the update began with; 0 waits."""
    save_state_every: int = Field(default=5, ge=1, le=MAX_ROUNDS, exclude_if=partial(eq, 5))
    """Rounds between two train states (optimiser, masters) that are kept on disk, beside the newest; a run that resumes
    from a round between repeats the updates since, to the same bits. A GPU without update.deterministic keeps each."""
    max_skipped_updates: int = Field(default=10, ge=1, exclude_if=partial(eq, 10))
    """Rounds in a row without signal (rewards without variance in all groups), each of which skips its update and keeps
    the policy, until the run ends; 1 ends it at the first. A run without one round with signal fails at its end."""
    keep: KeepConfig | None = Field(default=None, exclude_if=unset)
    """Checkpoints that keep their weights as the training continues; none for all. Others can be computed again
    (`gradus restore`)."""
    overrides: tuple[Override, ...] = ()
    """Changes of single stages."""
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict, exclude_if=empty)
    """Stages of installed packages, each run where its declaration says; written as a section of its own, [NAME]."""
    files: dict[str, str] = Field(default_factory=dict, exclude_if=empty)
    """Digests of the files that it reads, problems and rows of trackers, filled in: edited data is another run."""
    phase: tuple[Phase, ...] = Field(default=(), exclude_if=empty)
    """Phases of the training in their order, each with problems and settings of its own. With phases the training ends
    with the last one, or after `rounds`, which are those of the phases together unless they are set."""
    schedules: dict[str, ScheduleConfig] = Field(default_factory=dict, exclude_if=empty)
    """Schedules by setting, taken out of the sections, where one is written in place of a number."""
    guards: tuple[Guard, ...] = Field(default=(), exclude_if=empty)
    """Limits on what rounds measure: outside of them the run ends, or goes back to its best policy."""

    @property
    def all_problems(self) -> tuple[str, ...]:
        """The problems of each phase, in their order; those of the recipe if it has none."""
        return tuple(phase.problems or self.problems for phase in self.phase) or (self.problems,)

    @property
    def all_waves(self) -> tuple[WaveConfig, ...]:
        """The waves of a round in their order: the levels of `escalate`, then `waves`."""
        levels = {"name": "escalate", "levels": self.escalate, "times": len(self.escalate)}
        return (*([WaveConfig.model_validate(levels)] if self.escalate else []), *self.waves)

    @model_validator(mode="before")
    @classmethod
    def _as_it_may_be_written(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        body = lifted(with_rounds(cast("Mapping[str, Any]", given)))
        return of_packages(of_uses(body), cls.model_fields)

    @field_validator("scores", "roles")
    @classmethod
    def _have_names(cls, named: dict[str, C]) -> dict[str, C]:
        if odd := next((name for name in named if not NAME.fullmatch(name) or name in (LEARN, POLICY)), ""):
            raise ValueError(
                f"{shortened(odd)!r} cannot be a name: take small letters, digits and _, but not {LEARN} or {POLICY}"
            )
        return named

    @model_validator(mode="after")
    def _is_measured_on_its_own_kind(self) -> "Recipe":
        named = all("problems" in suite.model_fields_set for suite in self.evaluate.suites)
        own = [self.problems, *(phase.problems for phase in self.phase if phase.problems)]
        if not all(text.startswith("bundled:") for text in own) and not named:
            raise ValueError(
                "evaluate.problems is not set, and the bundled sums say nothing about your own problems: name a set "
                "of the same kind that training does not use"
            )
        return self

    @model_validator(mode="after")
    def _has_each_tracker_once(self) -> "Recipe":
        named = [tracker.short for tracker in self.trackers]
        if taken := next((n for n in named if n in (*NO_TRACKER, *STAGES)), ""):
            raise ValueError(f"a tracker cannot be called {taken}, which names other columns; rename the function")
        if twice := next((n for n in named if named.count(n) > 1 or n in [wave.short for wave in self.all_waves]), ""):
            raise ValueError(f"two functions of the recipe are called {twice}, one of them a tracker; rename one")
        return self

    @model_validator(mode="after")
    def _has_each_wave_once(self) -> "Recipe":
        named = [wave.short for wave in self.all_waves]
        if taken := next((n for n in named if n.startswith("eval") or n in ("train", "profile", "given", *STAGES)), ""):
            raise ValueError(f"a wave cannot be called {taken}, which names other stages of a run; rename the function")
        if twice := next((name for name in named if named.count(name) > 1), ""):
            also = ": once by `escalate`, once in `waves`; set escalate = []" if twice == "escalate" else ""
            raise ValueError(f"the wave {twice} stands twice, and overrides could not tell which{also}")
        return self

    @model_validator(mode="after")
    def _phases_follow_one_another(self) -> "Recipe":
        for number, phase in enumerate(self.phase[:-1], start=1):
            if phase.rounds is None and phase.tokens is None:
                raise ValueError(f"phase {number} has no end, and another follows it: set its rounds or tokens")
        return self

    @field_validator("name")
    @classmethod
    def _can_name_a_folder(cls, name: str) -> str:
        if problem := name_problem(name):
            raise ValueError(f"the name {shortened(name)!r} {problem}")
        return name


def load_recipe(
    name: str, assignments: Assignments | None = None, methods: Sequence[str] = (), **changes: object
) -> Recipe:
    """Read a recipe by path or bundled name and apply methods, `a.b=c` assignments and direct changes."""
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        if name in overlay_files():
            raise UsageError(f"{name} is a method, not a recipe", hint=f"lay it over one: demo --method {name}")
        known = sorted(p.stem for p in RECIPES.glob("*.toml"))
        raise UsageError(
            f"{path} is a folder, not a recipe" if path.is_dir() else f"there is no recipe {shortened(name)}",
            hint=did_you_mean(name, known, f"give a .toml file or one of: {', '.join(known)}"),
        )
    return recipe_from(read_toml(path), str(path), assignments or [], methods, **changes)


def recipe_from(
    body: dict[str, object], origin: str, assignments: Assignments, methods: Sequence[str] = (), **changes: object
) -> Recipe:
    """Return the recipe of a body with methods, `a.b=c` assignments and direct changes; `origin` names it in errors."""
    body = as_written(body)
    if methods:
        own, body = body, overlaid(body, find_overlays(methods))
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
        for each in map(with_guards_changes, settled(recipe)):
            if recipe.phase:
                Recipe.model_validate(each.model_dump(mode="json"))  # waves of its own beside the recipe's trackers
            held = [Override(stage=address(each, path)[0]) for path in each.schedules]
            for override in (*held, *each.overrides):
                _check(each, override, origin)
    except ValidationError as error:
        raise _refused(error, origin, body.get("evaluate")) from None
    refuse_unjudged(recipe)
    ends = {wave.until.metric for wave in recipe.all_waves if wave.until}
    read = {*(guard.metric for guard in recipe.guards), *metrics_read(recipe), *ends}
    if "policy/kl_ref" in read and not recipe.update.needs_reference:
        raise UsageError(
            f"{origin}: a guard, phase, wave or schedule reads policy/kl_ref, which is measured only with a reference "
            "policy",
            hint="set update.kl_coef above 0, if only to 1e-6",
        )
    return recipe


def _declared(recipe: Recipe, name: str, origin: str) -> JsonObject:
    """Return the settings of a package's stage, whole; raise UsageError if a training could not run it."""
    stage = stage_spec(name)
    if not stage.when:
        raise UsageError(f"{origin}: the stage {name} stands in no recipe: it does not declare `when`")
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
    if not isinstance(evaluate, dict) or "suites" in evaluate:
        return refusal(error, origin, known)
    written = [name for name in known if not name.startswith("evaluate.suites.")]
    return refusal(error, origin, written, {"evaluate.suites.0": "evaluate"})


def refuse_unjudged(recipe: Recipe) -> None:
    """Raise UsageError if the rewards of a round can never say what is correct where the recipe has to know it.

    That is in every suite, for waves and trackers that read it, and for difficulty unless it accepts rewards alone.
    """
    for each in settled(recipe):
        _refuse_unjudged(each)


def _refuse_unjudged(recipe: Recipe) -> None:
    rounds = {0, *(o.first_round for o in recipe.overrides if o.stage == "score")}
    for index in sorted(rounds):
        for suite in recipe.evaluate.suites:
            score = stage_config(recipe, "score", index, suite.score or recipe.score)
            refuse_without_verdicts(score, f"training {recipe.name}: the suite {suite.name}")
        training = stage_config(recipe, "score", index, recipe.score)
        for each in (*recipe.all_waves, *recipe.trackers):
            if "correct" in (each.needs or ()):
                refuse_without_verdicts(training, f"training {recipe.name}: the {each.kind} {each.label}")
        accepted = stage_config(recipe, "difficulty", index, recipe.difficulty).max_unjudged_frac
        refuse_without_verdicts(training, f"training {recipe.name}: difficulty", accepted)


def stage_config(recipe: Recipe, stage: str, round_index: int, base: C, past: Past = NOTHING, origin: str = "") -> C:
    """Return the settings of a stage in a round: the recipe's with its overrides, and with those of recorded guards."""
    body = base.model_dump(mode="json")
    if recipe.schedules:
        set_scheduled(body, stage, recipe, past, round_index)
    for override in (*recipe.overrides, *past.overrides()):
        if override.stage == stage and override.holds_in(round_index):
            for key, value in override.changes.items():
                set_dotted(body, key, value)
    return valid(type(base), body, origin or f"the settings of {stage}")


def curate_config(recipe: Recipe, index: int, past: Past = NOTHING) -> CurateConfig:
    """Return the settings of a round's first plan, with the prompts that it counts and the keys of trackers."""
    found = stage_config(recipe, "curate", index, recipe.curate, past)
    prompt = {"prompt": recipe.rollout.prompt} if found.counts_tokens else {}
    return found.model_copy(update={**prompt, "tracked": tracked_by(recipe.trackers, chosen_in(found))})


def wave_config(recipe: Recipe, wave: WaveConfig, index: int, past: Past = NOTHING, origin: str = "") -> PlanningConfig:
    """Return the settings of a wave in a round: sampled and drawn as that round's plan is, with its own overrides."""
    curate, max_age = curate_config(recipe, index, past), 0
    if wave.reads_stored:  # what is planned now is learned from by the update after it
        max_age = max(0, stage_config(recipe, "update", index, recipe.update, past).max_age - recipe.overlap)
    base = PlanningConfig(
        wave=wave,
        sample=curate.sample,
        curate=curate.model_copy(update={"sample": SampleConfig()}),
        max_age=max_age,
        roles={n: stage_config(recipe, f"roles.{n}", index, r, past).sample for n, r in recipe.roles.items()},
    )
    found = stage_config(recipe, wave.short, index, base, past, origin)
    tracked = tracked_by(recipe.trackers, chosen_in(found))
    return found.model_copy(update={"curate": found.curate.model_copy(update={"tracked": tracked})})


def tracker_config(
    recipe: Recipe, tracker: TrackerConfig, index: int, past: Past = NOTHING, origin: str = ""
) -> TrackingConfig:
    """Return the settings of a tracker in a round, with its own overrides."""
    found = stage_config(recipe, tracker.short, index, TrackingConfig(tracker=tracker), past, origin)
    return found.model_copy(update={"tracked": tracked_by(recipe.trackers, [found.tracker])})


def shaping_config(recipe: Recipe, update: UpdateConfig) -> ShapingConfig:
    """Return the settings with which the batch of an update is made; UsageError for what no tracker keeps."""
    tracked = tracked_by(recipe.trackers, (*update.shapes, *update.parts))
    return update.shaping.model_copy(update={"tracked": tracked})


def section(recipe: Recipe, stage: str) -> Config:
    """Return the settings that a recipe has for a stage, before changes of a round."""
    table, _, name = stage.partition(".")
    if name:
        return recipe.roles[name] if table == "roles" else recipe.scores[name]
    if stage in recipe.stages:
        return valid(stage_spec(stage).settings, recipe.stages[stage], stage)
    return getattr(recipe, stage)


def _check(recipe: Recipe, override: Override, origin: str) -> None:
    """Refuse a change of no stage of training, or one that does not fit the settings of its stage."""
    given = ("given",) if recipe.given is not None else ()
    waves = {wave.short: wave for wave in recipe.all_waves}
    trackers = {tracker.short: tracker for tracker in recipe.trackers}
    named = (*(f"roles.{name}" for name in recipe.roles), *(f"score.{use}" for use in recipe.scores))
    before = ("ingest", "hint", *given, "curate", "rollout", "score", *waves)
    ours = (*before, *named, "difficulty", *trackers, "update", "evaluate")
    stages = (*ours, *recipe.stages)
    if override.stage not in stages:
        listed = f"the stages of a training run are {', '.join(stages)}"
        hint = did_you_mean(override.stage, stages, listed)
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
        case stage:
            stage_config(recipe, stage, index, section(recipe, stage), NOTHING, where)
