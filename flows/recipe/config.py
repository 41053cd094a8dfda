"""A recipe: everything that decides a training run, as one frozen model read from one TOML file.

Order of precedence: the recipe's TOML, methods laid over it (gradus.flows.recipe.overlays), then `--set a.b=c`, in
the order given.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, field_validator, model_validator

from gradus.components.chosen import HINT_TEXTS, Chosen, MeasureConfig, ScheduleConfig, TrackerConfig, WaveConfig
from gradus.components.settings import MAX_ROUNDS, Config, empty, optional, unset
from gradus.data.curation.uses import LEARN, NAME, POLICY
from gradus.data.errors import UsageError, shortened
from gradus.data.lake.schema import NO_TRACKER, OWN
from gradus.data.records import JsonObject
from gradus.data.worked import AS_IT_STANDS
from gradus.flows.recipe.course.phases import Phase, with_rounds
from gradus.flows.recipe.course.schedules import lifted
from gradus.flows.recipe.guards import Guard, Override
from gradus.flows.recipe.sections import of_packages, of_uses
from gradus.flows.recipe.suites import EvaluationPlan
from gradus.tasks.config.curation import (
    MAX_LEVEL,
    CurateConfig,
    DifficultyConfig,
    HintConfig,
    IngestConfig,
    SampleConfig,
)
from gradus.tasks.config.learning import UpdateConfig, refuse_without_solution
from gradus.tasks.config.rollout import RoleConfig, RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.preflight.checks import name_problem
from gradus.tasks.stages.registry import STAGES

C = TypeVar("C", bound=Config)


class KeepConfig(Config):
    """Checkpoints that keep their weights; every checkpoint keeps its manifest, and can be computed again."""

    last: int = Field(default=2, ge=1, le=MAX_ROUNDS)
    """Those of the last N rounds; the newest keeps its train state too."""
    every: int = Field(default=0, ge=0, le=MAX_ROUNDS)
    """And those of every N-th round, with their train states; 0 for none."""
    best: bool = True
    """The best one, by the selection suite or by the only one."""

    def weights(self, rounds: Iterable[int], best: int | None) -> set[int]:
        """Return which of the rounds keep their weights."""
        known = sorted(rounds)
        return {*known[-self.last :], *self.landmarks(known), *({best} if self.best and best is not None else ())}

    def states(self, rounds: Iterable[int]) -> set[int]:
        """Return which of the rounds keep their train states."""
        known = sorted(rounds)
        return {*known[-1:], *self.landmarks(known)}

    def landmarks(self, rounds: Iterable[int]) -> set[int]:
        """Return those of every N-th round."""
        return {index for index in rounds if self.every and index % self.every == 0}


def read_keep(text: str) -> KeepConfig:
    """Read `last=2,every=5,best`; best is left out where the text does not name it. UsageError if it is wrong."""
    found: dict[str, int | bool] = {"best": False}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if part == "best":
            found["best"] = True
        elif name in ("last", "every") and value.isdigit() and int(value) > 0:
            found[name] = int(value)
        else:
            raise UsageError(f"--keep {part!r} names no checkpoints", hint="write --keep last=2,every=5,best")
    return KeepConfig.model_validate(found)


class BeginConfig(Config):
    """Tables of an earlier run that a training begins with, each an artifact or a file."""

    difficulty: str = Field(default="", exclude_if=empty)
    """Difficulty of the problems, in place of what `profile` would measure."""
    any_policy: bool = Field(default=False, exclude_if=empty)
    """Take a difficulty whose pass rates are of another policy than the one that the training begins with and those
    that it was made of; without it such a table is refused."""
    hints: str = Field(default="", exclude_if=empty)
    """Hints, in place of those that the recipe would build."""
    rollouts: tuple[str, ...] = Field(default=(), exclude_if=empty)
    """Rollouts that waves may take up again, as those of a round before the first."""
    scores: tuple[str, ...] = Field(default=(), exclude_if=empty)
    """The scores of these rollouts."""
    plan: str = Field(default="", exclude_if=empty)
    """Rows of a plan, such as `gradus plan` writes, that rounds take in place of a choice of their own: `curate.draw`
    of them each, in their order and from the first on again behind the last, all of them without `draw`. Problem, n,
    hint, temperature and max_tokens are those of the row, where it has them."""

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """Return the artifacts and files that it names, by table."""
        one = {name: (text,) if (text := getattr(self, name)) else () for name in ("difficulty", "hints", "plan")}
        return {**one, "rollouts": self.rollouts, "scores": self.scores}


class GivenConfig(Config):
    """Texts beside the policy's own rollouts of each problem: worked solutions, or rows of a file."""

    origin: str = Field(default="expert", min_length=1)
    """Origin of the rows; update.origin_losses names the loss that they take."""
    rows: str = Field(default="", exclude_if=empty)
    """A JSONL or Parquet file of traces in place of the solutions, several a problem: problem (id or question), text,
    and source, which is kept. They are judged and trained on as they stand."""
    template: str = AS_IT_STANDS
    """Target made of a solution: {solution} is trained on as it stands; {answer} is the gold answer, which a template
    such as "{solution}\\n#### {answer}" appends to right and wrong solutions alike."""

    _places_the_solution = field_validator("template")(refuse_without_solution)

    @field_validator("origin")
    @classmethod
    def _is_not_the_policy(cls, origin: str) -> str:
        if origin == OWN:
            raise ValueError(f"{OWN!r} is the origin of what the policy itself writes")
        return origin

    @model_validator(mode="after")
    def _leaves_traces_as_they_are(self) -> "GivenConfig":
        if self.rows and self.template != AS_IT_STANDS:
            raise ValueError("template is for worked solutions: the rows of a file are trained on unchanged")
        return self

    @property
    def wave(self) -> dict[str, str]:
        """Return the wave that it spells."""
        return {"name": "given", "origin": self.origin, "template": self.template, "traces": self.rows}


class ReferenceConfig(Config):
    """The reference of the updates: the starting policy unless one of these is set."""

    renew_every: int = Field(default=0, ge=0, le=MAX_ROUNDS, exclude_if=empty)
    """Rounds after which the newest policy becomes the reference (ProRL, arXiv 2505.24864, which renews it when
    validation stalls, and the optimiser with it)."""
    lag_rounds: int = Field(default=0, ge=0, le=MAX_ROUNDS, exclude_if=empty)
    """Rounds by which the reference lags behind the policy; it is the starting one at first."""
    phase: bool = optional(False)
    """The policy with which the phase began (VerIPO)."""

    @model_validator(mode="after")
    def _is_one(self) -> "ReferenceConfig":
        if sum(map(bool, (self.renew_every, self.lag_rounds, self.phase))) > 1:
            raise ValueError("renew_every, lag_rounds and phase name different policies: set one of them")
        return self

    def round_of(self, index: int, first: int) -> int:
        """Return the round whose policy a round is held to, 0 for the starting one; its phase began with `first`."""
        if self.renew_every:
            return (index - 1) // self.renew_every * self.renew_every
        if self.lag_rounds:
            return max(0, index - 1 - self.lag_rounds)
        return max(0, first - 1) if self.phase else 0

    def rounds_after(self, index: int, first: int) -> set[int]:
        """Return the rounds up to this one whose policies later rounds of the phase are held to."""
        return {self.round_of(later, first) for later in range(index + 1, index + self.lag_rounds + 2)}


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
    begin: BeginConfig = Field(default_factory=BeginConfig, exclude_if=empty)
    """Tables of an earlier run to begin with; its policy is `policy`, and trackers have `start`."""
    profile: SampleConfig | None = None
    """Measure difficulty before the first round, and before a phase of other problems, with these samples; None starts
    without a measurement."""
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
    measures: tuple[MeasureConfig, ...] = Field(default=(), exclude_if=empty)
    """Functions that ask a frozen model about problems or rollouts, whose columns are read as those of trackers are."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Generation of completions."""
    score: ScoreConfig = Field(default_factory=ScoreConfig)
    """Judging of completions; `[score.USE]` is that of rows of another use (judge, critique ...) of a wave's."""
    scores: dict[str, ScoreConfig] = Field(default_factory=dict, exclude_if=empty)
    """Judging of rows of other uses, by use; written as `[score.USE]`. Rows of a use without it are not judged."""
    roles: dict[str, RoleConfig] = Field(default_factory=dict, exclude_if=empty)
    """Models that sample the rows of a wave which name them as their role, by name."""
    given: GivenConfig | None = Field(default=None, exclude_if=unset)
    """Worked solutions of a round's problems, or texts of a file, which the wave `given` adds to their groups after all
    other waves; none trains on the policy's own rows alone."""
    difficulty: DifficultyConfig = Field(default_factory=DifficultyConfig)
    """Update of the difficulty table from round to round."""
    update: UpdateConfig = Field(default_factory=UpdateConfig)
    """Training of the policy."""
    teacher: str = Field(default="", exclude_if=empty)
    """The policy that a loss distils from, named as `policy` is."""
    reference: ReferenceConfig = Field(default_factory=ReferenceConfig, exclude_if=empty)
    """The policy that `update.kl_coef` and components call the reference: the one that the training began with, or a
    later one. Other models that are trained are held to those that they began with."""
    evaluate: EvaluationPlan = Field(default_factory=EvaluationPlan)
    """Measurement of progress."""
    overlap: int = Field(default=0, ge=0, le=1, exclude_if=empty)
    """1 generates the next round while an update computes, from the policy that the update began with; 0 waits."""
    save_state_every: int = optional(5, ge=1, le=MAX_ROUNDS)
    """Rounds between two train states (optimiser, masters) that are kept on disk, beside the newest; a run that resumes
    from a round between repeats the updates since, to the same bits. A GPU without update.deterministic keeps each."""
    max_skipped_updates: int = optional(10, ge=1)
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
        """The waves of a round in their order: the levels of `escalate`, `waves`, then the texts of `given`."""
        levels = {"name": "escalate", "levels": self.escalate, "times": len(self.escalate)}
        first = [levels] if self.escalate else []
        last = [] if self.given is None else [self.given.wave]
        first, last = ([WaveConfig.model_validate(each) for each in bodies] for bodies in (first, last))
        return (*first, *self.waves, *last)

    @property
    def reads_hints(self) -> bool:
        """Return whether a wave or measure reads hints, or problems are shown some from the start in any round."""
        changes = (*(o.changes for o in self.overrides if o.stage == "curate"), *(g.changes for g in self.guards))
        later = any(each.get(key) for each in changes for key in ("hint_level", "curate.hint_level"))
        static = self.curate.hint_level > 0 or "curate.hint_level" in self.schedules
        read = (*(wave.reads("hint") for wave in self.all_waves), *(each.reads(HINT_TEXTS) for each in self.measures))
        return static or later or any(read)

    @property
    def all_measures(self) -> tuple[MeasureConfig, ...]:
        """The measures of the training and of its suites."""
        return (*self.measures, *(measure for suite in self.evaluate.suites for measure in suite.measures))

    @property
    def sampled_roles(self) -> Mapping[str, RoleConfig]:
        """The roles that a wave may plan: all but those that score texts."""
        scorers = {measure.role for measure in self.all_measures if measure.declared.needs_head}
        return {name: role for name, role in self.roles.items() if name not in scorers}

    @property
    def keepers(self) -> tuple[Chosen, ...]:
        """The functions whose columns others read as NAME.COLUMN."""
        return (*self.trackers, *self.measures)

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
    def _has_each_keeper_once(self) -> "Recipe":
        named = [each.short for each in self.keepers]
        for each in self.keepers:
            if each.short in (*NO_TRACKER, *STAGES):
                what = f"a {each.kind} cannot be called {each.short}"
                raise ValueError(f"{what}, which names other columns; rename the function")
            if named.count(each.short) > 1 or each.short in [wave.short for wave in self.all_waves]:
                what = f"two functions of the recipe are called {each.short}"
                raise ValueError(f"{what}, one of them a {each.kind}; rename one")
        return self

    @model_validator(mode="after")
    def _has_each_wave_once(self) -> "Recipe":
        named = [wave.short for wave in self.all_waves]
        if taken := next((n for n in named if n.startswith("eval") or n in ("train", "profile", *STAGES)), ""):
            raise ValueError(f"a wave cannot be called {taken}, which names other stages of a run; rename the function")
        if twice := next((name for name in named if named.count(name) > 1), ""):
            spelt = {"escalate": "set escalate = []", "given": "leave one out"}
            also = f": once by `{twice}`, once in `waves`; {spelt[twice]}" if twice in spelt else ""
            raise ValueError(f"the wave {twice} stands twice, and overrides could not tell which{also}")
        return self

    @model_validator(mode="after")
    def _phases_follow_one_another(self) -> "Recipe":
        if self.profile is None and (asked := [place for place, each in enumerate(self.phase) if each.profile is True]):
            message = f"phase {asked[0] + 1} asks for a profile, and the recipe has no [profile] with its samples"
            raise ValueError(message)
        for number, phase in enumerate(self.phase[:-1], start=1):
            if phase.rounds is None and phase.tokens is None:
                raise ValueError(f"phase {number} has no end, and another follows it: set its rounds or tokens")
        return self

    @model_validator(mode="after")
    def _has_one_reference(self) -> "Recipe":
        if self.reference != ReferenceConfig() and self.update.reference == "ema":
            raise ValueError("reference: update.reference = ema is another one; leave one out")
        return self

    @field_validator("name")
    @classmethod
    def _can_name_a_folder(cls, name: str) -> str:
        if problem := name_problem(name):
            raise ValueError(f"the name {shortened(name)!r} {problem}")
        return name


_NOT_LASTING = ("rounds", "guards", "save_state_every", "max_skipped_updates", "keep")
"""Settings that change no result, only the length of a run or the files that it keeps."""


def lasting(recipe: Recipe) -> JsonObject:
    """Return the settings that must stay the same while a run keeps its name: all that change its results."""
    body = recipe.model_dump(mode="json")
    return {key: value for key, value in body.items() if key not in _NOT_LASTING}


def same_run(stored: Recipe, recipe: Recipe) -> bool:
    """Return whether a run continues with a recipe; runs of earlier versions have no digests of their files."""
    return lasting(stored) == lasting(recipe if stored.files else recipe.model_copy(update={"files": {}}))


def changed_files(stored: JsonObject, body: JsonObject) -> list[str]:
    """Return the files whose content differs between two stored recipes; none if the recipes differ otherwise."""
    apart = {*_NOT_LASTING, "files"}
    one, other = ({key: value for key, value in each.items() if key not in apart} for each in (stored, body))
    held, holds = stored.get("files"), body.get("files")
    if one != other or not isinstance(held, Mapping) or not isinstance(holds, Mapping):
        return []
    return [name for name, digest in holds.items() if held.get(name) != digest]
