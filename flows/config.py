"""A recipe: everything that decides a training run, as one frozen model read from one TOML file.

Order of precedence: the recipe's TOML, then `--set a.b=c`, in the order given.
"""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from data.errors import UsageError
from tasks.config import (
    Config,
    CurateConfig,
    DifficultyConfig,
    EvaluateConfig,
    HintConfig,
    IngestConfig,
    RolloutConfig,
    SampleConfig,
    ScoreConfig,
    UpdateConfig,
)
from tasks.verdicts import refuse_without_verdicts

C = TypeVar("C", bound=Config)

RECIPES = Path(__file__).parents[1] / "recipes"


class Override(Config):
    """A change of one stage's settings, in one round or in all (what `gradus rerun --set` writes)."""

    stage: str
    """Which stage."""
    round: int | None = None
    """Which round; none for all."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Dotted key -> value."""


class EvaluationPlan(Config):
    """When the policy is evaluated, and on what."""

    problems: str = "bundled:heldout"
    """Problem set: bundled:NAME, a file, a folder or an artefact."""
    every: int = Field(default=0, ge=0)
    """Evaluate after every so many rounds; 0 only before and after."""
    sample: SampleConfig = SampleConfig()
    """How each problem is sampled; the same seeds before and after."""
    report: EvaluateConfig = EvaluateConfig()
    """What is computed."""


def _off(value: int) -> bool:
    """Left out of what is written: a recipe that does not overlap is, and is called, what it was before."""
    return not value


class Recipe(Config):
    """One training run: names of components and their settings, nothing else."""

    name: str
    """Short name; part of the run's name."""
    seed: int = 0
    """Every other seed derives from it."""
    rounds: int = Field(default=10, ge=0)
    """Rounds of curate, rollout, score, update."""
    policy: str = "bundled"
    """The starting policy: bundled, a folder, a checkpoint artefact, or a hub id with @revision."""
    problems: str = "bundled:train"
    """Problems to train on: bundled:NAME, a file, a folder or an artefact."""
    ingest: IngestConfig = IngestConfig()
    """How problem files are read."""
    profile: SampleConfig | None = None
    """Measure difficulty before the first round with so many rollouts; none starts without a measurement."""
    curate: CurateConfig = CurateConfig()
    """Which problems each round takes."""
    hint: HintConfig = HintConfig()
    """How hints are built."""
    escalate: tuple[int, ...] = (1, 2, 3)
    """Hint levels tried, in order, on groups whose every rollout failed; empty for no hints."""
    rollout: RolloutConfig = RolloutConfig()
    """How completions are generated."""
    score: ScoreConfig = ScoreConfig()
    """How completions are judged."""
    difficulty: DifficultyConfig = DifficultyConfig()
    """How difficulty is kept from round to round."""
    update: UpdateConfig = UpdateConfig()
    """How the policy learns."""
    evaluate: EvaluationPlan = EvaluationPlan()
    """How progress is measured."""
    overlap: int = Field(default=0, ge=0, le=1, exclude_if=_off)
    """1 generates the next round while an update computes, from the policy that the update began with; 0 waits."""
    overrides: tuple[Override, ...] = ()
    """Changes of single stages."""


def load_recipe(name: str, assignments: list[str] | None = None, **changes: Any) -> Recipe:
    """Read a recipe by path or bundled name and apply `a.b=c` assignments and direct changes."""
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in RECIPES.glob("*.toml")))
        raise UsageError(f"there is no recipe {name}", hint=f"give a .toml file or one of: {known}")
    try:
        body = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    assign(body, assignments or [])
    body.update({k: v for k, v in changes.items() if v is not None})
    return parse_recipe(body, str(path))


def parse_recipe(body: dict[str, Any], origin: str) -> Recipe:
    """Validate a recipe; UsageError names the first wrong key and the file, or what could never be evaluated."""
    try:
        recipe = Recipe.model_validate(body)
    except ValidationError as error:
        raise _usage(error, origin) from None
    refuse_unjudged(recipe)
    return recipe


def refuse_unjudged(recipe: Recipe) -> None:
    """UsageError if the rewards of a round, overrides included, can never say what is correct."""
    rounds = {0, *(o.round or 0 for o in recipe.overrides if o.stage == "score")}
    for index in sorted(rounds):
        refuse_without_verdicts(stage_config(recipe, "score", index, recipe.score), f"training {recipe.name}")


def assign(body: dict[str, Any], assignments: list[str]) -> None:
    """Apply `a.b=c` texts to a nested dict in place; values are read as TOML, else as text."""
    for text in assignments:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UsageError(f"--set {text!r} is not an assignment", hint="write it as --set update.lr=1e-4")
        set_dotted(body, key.strip(), toml_value(value.strip()))


def set_dotted(body: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a nested dict; an integer part indexes a list."""
    *parents, last = key.split(".")
    node: Any = body
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
    if isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value


def toml_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none (`lr=1e-4`, `name=abc`, `escalate=[1,2]`)."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def stage_config(recipe: Recipe, stage: str, round_index: int, base: C) -> C:
    """The settings of a stage in a round: the recipe's with that round's overrides."""
    body = base.model_dump(mode="json")
    for override in recipe.overrides:
        if override.stage == stage and override.round in (None, round_index):
            for key, value in override.changes.items():
                set_dotted(body, key, value)
    try:
        return type(base).model_validate(body)
    except ValidationError as error:
        raise _usage(error, f"the settings of {stage}") from None


def _usage(error: ValidationError, origin: str) -> UsageError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    return UsageError(f"{origin}: {key}: {first['msg']}", hint="see the settings with `gradus methods`")
