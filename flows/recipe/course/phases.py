"""Phases of a training: rounds with problems and settings of their own, one phase after the other.

[[phase]]
rounds = 20                            # at most
problems = "math.jsonl"
until = { metric = "reward/mean", min = 0.8, patience = 3 }
changes = { "curate.sample.max_tokens" = 1024 }

[[phase]]                              # up to the recipe's `rounds`
problems = "code.jsonl"
changes = { "score.rewards" = [{ name = "code.py:passes" }] }
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field, model_validator

from gradus.components.chosen import ScheduleConfig, WaveConfig
from gradus.components.recorded import Streak, Until
from gradus.components.settings import MAX_ROUNDS, MAX_ROWS, Config, empty, unset
from gradus.flows.recipe.course.past import Past
from gradus.flows.recipe.course.schedules import extremes, is_schedule, named
from gradus.flows.recipe.guards import Override, by_stage
from gradus.tasks.config.curation import MAX_LEVEL, SampleConfig

if TYPE_CHECKING:
    from gradus.flows.recipe.config import Recipe


class Phase(Config):
    """A part of a training: its end, its problems and its changes of the recipe's settings."""

    rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    """Rounds of the phase, at most; the last phase may leave it out and holds up to the recipe's `rounds`."""
    tokens: int | None = Field(default=None, ge=1, le=MAX_ROWS)
    """Completion tokens sampled in the phase after which it ends."""
    until: Until | None = None
    """A threshold at which it ends; needs `rounds`, too."""
    problems: str = ""
    """Problems of its rounds; the recipe's unless given."""
    profile: bool | SampleConfig | None = Field(default=None, exclude_if=unset)
    """Measure the difficulty of its problems before its first round: true with the recipe's samples, or with these.
    Unless given, it is measured if the recipe has `profile` and the problems are others than in the phase before."""
    waves: tuple[WaveConfig, ...] | None = Field(default=None, exclude_if=unset)
    """The waves of its rounds, in place of the recipe's."""
    escalate: tuple[Annotated[int, Field(ge=1, le=MAX_LEVEL)], ...] | None = Field(default=None, exclude_if=unset)
    """The hint levels of its rounds, in place of the recipe's."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Settings of its rounds, STAGE.KEY = value; a value may be a schedule, which counts the phase's rounds."""
    schedules: dict[str, ScheduleConfig] = Field(default_factory=dict, exclude_if=empty)
    """Those of `changes` that are schedules, filled in."""

    @model_validator(mode="before")
    @classmethod
    def _take_schedules(cls, given: object) -> object:
        changes = given.get("changes") if isinstance(given, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(changes, Mapping):
            return given
        found = {key: named(value) for key, value in changes.items() if is_schedule(value)}
        kept = {key: value for key, value in changes.items() if key not in found}
        return {**given, "changes": kept, **({"schedules": found} if found else {})}

    @model_validator(mode="after")
    def _can_end(self) -> "Phase":
        if self.until is not None and self.rounds is None:
            message = "until needs `rounds` beside it: a threshold that is never reached would not end the phase"
            raise ValueError(message)
        by_stage(self.changes)
        return self

    def has_ended(self, rounds: int, tokens: int, in_a_row: int) -> bool:
        """Return whether it ends after some rounds and tokens, and rounds in a row that were at its threshold."""
        patience = self.until and self.until.patience
        ends = ((self.rounds, rounds), (self.tokens, tokens), (patience, in_a_row))
        return any(limit is not None and number >= limit for limit, number in ends)


def with_rounds(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's body; if it has no `rounds`, they are the sum of its phases' rounds."""
    phases = body.get("phase")
    if not phases or "rounds" in body or not isinstance(phases, list | tuple):
        return dict(body)
    each = [cast("Mapping[str, Any]", phase).get("rounds") if isinstance(phase, Mapping) else None for phase in phases]
    if not all(isinstance(rounds, int) for rounds in each):
        number = each.index(None) + 1 if None in each else 1
        raise ValueError(f"phase {number} has no rounds, so set the recipe's `rounds`, after which the training ends")
    return {**body, "rounds": sum(cast("list[int]", each))}


def phase_of(recipe: "Recipe", index: int, past: Past) -> tuple[int, int] | None:
    """Return the place of a round's phase and the phase's first round; None after the last phase.

    A recipe without phases is one that never ends. The figures of earlier rounds alone decide, so a repeated run has
    the same phases.
    """
    place, first, tokens = 0, 1, 0
    if not recipe.phase:
        return place, first
    streak = _begun(recipe, place, first, past)
    for following in range(2, index + 1):
        phase, newest = recipe.phase[place], following - 1 - recipe.overlap  # the last round whose figures are known
        if first <= newest <= len(past.rounds):
            found = past.rounds[newest - 1]
            tokens += found.tokens
            streak = phase.until.streak(streak, found.metrics) if phase.until else streak
        if phase.has_ended(following - first, tokens, streak.length):
            place, first, tokens = place + 1, following, 0
            if place == len(recipe.phase):
                return None
            streak = _begun(recipe, place, first, past)
    return place, first


def _begun(recipe: "Recipe", place: int, first: int, past: Past) -> Streak:
    """Return a count of no rounds yet, with the value of the phase's metric at its beginning."""
    until = recipe.phase[place].until
    return Streak(0, until and past.newest(until.metric, first, recipe.overlap))


def recipe_of_phase(recipe: "Recipe", place: int, first: int) -> "Recipe":
    """Return the recipe of the rounds of a phase that begins with a round: with its changes, and without phases."""
    phase = recipe.phase[place]
    changes = tuple(Override(stage=stage, changes=each) for stage, each in by_stage(phase.changes).items())
    own = {path: each.model_copy(update={"from_round": first}) for path, each in phase.schedules.items()}
    body: dict[str, object] = {
        "phase": (),
        "overrides": (*changes, *recipe.overrides),
        "schedules": {**recipe.schedules, **own},
        "problems": phase.problems or recipe.problems,
        "profile": _profile(recipe, place),
    }
    replaced = {"waves": phase.waves, "escalate": phase.escalate}
    return recipe.model_copy(update={**body, **{key: value for key, value in replaced.items() if value is not None}})


def _profile(recipe: "Recipe", place: int) -> SampleConfig | None:
    """Return the samples by which a phase measures the difficulty of its problems; None if it does not."""
    asked, problems = recipe.phase[place].profile, recipe.all_problems
    if isinstance(asked, SampleConfig):
        return asked
    others = place == 0 or problems[place] != problems[place - 1]
    return recipe.profile if (others if asked is None else asked) else None


def of_each_phase(recipe: "Recipe") -> "list[Recipe]":
    """Return the recipe of each phase, as if it began with the first round; the recipe itself if it has none."""
    return [recipe_of_phase(recipe, place, 1) for place in range(len(recipe.phase))] or [recipe]


def settled(recipe: "Recipe") -> "Iterator[Recipe]":
    """Yield recipes without phases and with constant schedules that together cover all settings of a run."""
    for each in of_each_phase(recipe):
        for held in list(extremes(each.schedules, recipe.rounds)) or [{}]:
            yield each.model_copy(update={"schedules": held}) if each.schedules else each


def following_rounds(recipe: "Recipe") -> list[str]:
    """Return, in words, the ends of phases and the settings that follow what rounds record."""
    ends = [f"the end of phase {n}" for n, phase in enumerate(recipe.phase, start=1) if phase.until or phase.tokens]
    chosen = (each.schedules.items() for each in of_each_phase(recipe))
    recorded = ("tokens", "optimizer_steps")
    read = (path for items in chosen for path, each in items if each.metrics or any(map(each.settings.get, recorded)))
    return [*ends, *dict.fromkeys(read)]
