"""Schedules of a recipe: a table in place of a number, from which each round's settings get their number.

[update]
lr = { schedule = "linear", start = 1e-4, end = 1e-6, rounds = 100 }

When a recipe is read they are taken out of its sections, which keep the number of the first round.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from gradus.components.chosen import ScheduleConfig
from gradus.data.errors import UsageError
from gradus.data.schedules.progress import Progress, ScheduleError
from gradus.flows.recipe.assignments import set_dotted
from gradus.flows.recipe.course.past import Past
from gradus.flows.recipe.guards import stage_of
from gradus.tasks.identity.loading import number_of

if TYPE_CHECKING:
    from gradus.flows.recipe.config import Recipe

KEY = "schedule"
"""The key of such a table that names the schedule."""


_APART = ("schedules", "phase", "guards", "overrides", "files")
"""Keys of a recipe that are not sections."""
_OF_THE_LOOP = ("wave.times", "wave.from_round")
"""Settings of a wave that are read once."""
_MAX_MOMENTS = 1000
"""Rounds of a long training that are looked at, evenly spaced; of any other all are."""


def lifted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's body with its schedules as `schedules`; in their places stand the numbers of the first round.

    A schedule that is no function of ours leaves the default of its setting there.
    """
    found: dict[str, Mapping[str, Any]] = {}
    body = {key: value if key in _APART else _without(value, key, found) for key, value in given.items()}
    for path, table in found.items():
        if (value := _first(path, table)) is not None:
            set_dotted(body, path, value)
    return {**body, "schedules": {**given.get("schedules", {}), **found}} if found else body


def as_written(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a recipe that was read with its schedules in their places, so that changes replace them."""
    written = dict(body)
    for path, table in written.pop("schedules", {}).items():
        set_dotted(written, path, {KEY: table["name"], **{key: v for key, v in table.items() if key != "name"}})
    return written


def is_schedule(value: object) -> bool:
    """Return whether a value of a recipe is a schedule's table."""
    return isinstance(value, Mapping) and isinstance(value.get(KEY), str)


def named(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schedule's table as settings of a component."""
    return {"name": table[KEY], **{key: value for key, value in table.items() if key != KEY}}


def number(path: str, chosen: ScheduleConfig, now: Progress) -> float:
    """Return the number of a schedule; it sees the metrics that it declares. UsageError if it makes none."""
    seen = replace(now, metrics={name: now.metrics[name] for name in chosen.metrics if name in now.metrics})
    try:
        return number_of(chosen, seen)
    except ScheduleError as error:
        raise UsageError(f"{path}: the schedule {chosen.label}: {error}") from None


def address(recipe: "Recipe", path: str) -> tuple[str, str]:
    """Return the stage whose settings have the setting of a schedule, and the setting's key there."""
    section, key = stage_of(path)
    functions = {"waves": recipe.waves, "trackers": recipe.trackers, "measures": recipe.measures}.get(section, ())
    place, _, own = key.partition(".")
    if place.isdecimal() and int(place) < len(functions):
        return functions[int(place)].short, f"{section[:-1]}.{own}"
    return section, key


def refuse_unfit(recipe: "Recipe", origin: str) -> None:
    """Raise UsageError for a schedule of a setting that rounds do not read again."""
    functions = (each.short for each in (*recipe.all_waves, *recipe.keepers))
    named = (*(f"roles.{name}" for name in recipe.roles), *(f"score.{use}" for use in recipe.scores))
    stages = ("curate", "rollout", "score", "difficulty", "update", *named, *functions, *recipe.stages)
    for path in recipe.schedules:
        stage, key = address(recipe, path)
        if stage not in stages or not key or key in _OF_THE_LOOP:
            what = f"{origin}: {path} cannot follow a schedule: it is not read anew in every round"
            raise UsageError(what, hint=f"numbers of {', '.join(stages)} can follow one")


def set_scheduled(body: dict[str, Any], stage: str, recipe: "Recipe", past: Past, index: int) -> None:
    """Write the numbers of a round into the settings of a stage; a setting of whole numbers has the nearest one."""
    for path, chosen in recipe.schedules.items():
        of, key = address(recipe, path)
        if of == stage:
            value = number(path, chosen, past.progress(index, recipe.overlap, chosen.from_round))
            set_dotted(body, key, round(value) if isinstance(_value(body, key), int) else value)


def extremes(schedules: Mapping[str, ScheduleConfig], rounds: int) -> Iterator[dict[str, ScheduleConfig]]:
    """Yield the schedules as constants: their numbers in each round in which one has its least or greatest.

    Metrics, tokens and steps are assumed absent, very small and very large. A user's function is not run.
    """
    ours = {path: chosen for path, chosen in schedules.items() if not chosen.is_users}
    far = {name: (10.0**12,) for chosen in ours.values() for name in chosen.metrics}
    low = {name: (-value,) for name, (value,) in far.items()}
    last = max(1, rounds)
    moments = [Progress(index) for index in sorted({1, last, *range(1, last, -(-last // _MAX_MOMENTS))})]
    moments += [Progress(last, 10**15, metrics, 10**15) for metrics in (far, low)]
    values: dict[str, list[float]] = {}
    for path, chosen in ours.items():
        seen = (replace(now, round=max(1, now.round - chosen.from_round + 1)) for now in moments)
        values[path] = [number(path, chosen, now) for now in seen]
    ends = {pick(range(len(moments)), key=each.__getitem__) for each in values.values() for pick in (min, max)}
    for at in sorted(ends):  # none without a schedule of ours
        held = {path: {"name": "steps", "values": [each[at]]} for path, each in values.items()}
        yield {path: ScheduleConfig.model_validate(body) for path, body in held.items()}


def _without(value: Any, path: str, found: dict[str, Mapping[str, Any]]) -> Any:
    """Return a part of a recipe without the schedules in it, which are added to `found`."""
    if isinstance(value, Mapping):
        kept: dict[str, Any] = {}
        for key, part in cast("Mapping[str, Any]", value).items():
            if is_schedule(part):
                found[f"{path}.{key}"] = named(part)
            else:
                kept[key] = _without(part, f"{path}.{key}", found)
        return kept
    if isinstance(value, list):
        return [_without(part, f"{path}.{place}", found) for place, part in enumerate(cast("list[Any]", value))]
    return value


def _first(path: str, table: Mapping[str, Any]) -> float | int | None:
    """Return a schedule's number in the first round, a whole one as such; None for one that is not ours, or wrong."""
    try:
        chosen = ScheduleConfig.model_validate(table)
    except ValidationError:  # reported when `schedules` is checked
        return None
    if not chosen.is_ours:
        return None
    value = number(path, chosen, Progress(1))
    return int(value) if value.is_integer() else value


def _value(body: object, key: str) -> object:
    for part in key.split("."):
        body = body[int(part)] if isinstance(body, list) else body.get(part) if isinstance(body, dict) else None
    return body
