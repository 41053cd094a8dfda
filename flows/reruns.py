"""What `gradus rerun` is asked for, checked against what the run did before anything starts. No Prefect here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.errors import UsageError
from data.nearest import did_you_mean
from flows.config import Override, Recipe, parse_recipe, split_assignment
from flows.nearest import valid
from tasks.journal import read_events, read_settings
from tasks.registry import STAGES

Call = tuple[str, int, str]
"""A stage, its round and its purpose."""

_GIVEN = {
    "ingest": ("source", "source_sha256"),
    "curate": ("round",),
    "escalate": ("level",),
    "rollout": ("round",),
    "difficulty": ("round",),
    "evaluate": ("suite",),
}
"""Settings that the run fills in, by stage."""


@dataclass(frozen=True)
class Rerun:
    """What to run: the recipe, the run's name (none: that of its settings) and the stages computed in any case."""

    recipe: Recipe
    run: str | None
    forced: tuple[Call, ...] = ()


def plan_rerun(runs: Path, run: str, stage: str, round_index: int | None, assignments: Sequence[str]) -> Rerun:
    """One stage of a run again: forced where nothing is set, otherwise the recipe with that change.

    Raises UsageError for a run, a stage, a round or a setting that does not exist, and for a value that does not fit.
    """
    recipe = _recipe(runs, run)
    if stage not in STAGES:
        listed = f"the stages are {', '.join(STAGES)}"
        raise UsageError(f"there is no stage {stage!r}", hint=did_you_mean(stage, list(STAGES), listed))
    calls = _chosen(_calls(runs / run), run, stage, round_index, changed=bool(assignments))
    if not assignments:
        return Rerun(recipe, run, tuple(calls))
    changes = dict(split_assignment(text) for text in assignments)
    override = valid(Override, {"stage": stage, "round": round_index, "changes": changes}, "--set")
    return Rerun(_changed(recipe, override), None)


def _recipe(runs: Path, run: str) -> Recipe:
    path = runs / run / "run.json"
    if not path.is_file():
        names = [folder.parent.name for folder in runs.glob("*/run.json")]
        raise UsageError(f"there is no run {run}", hint=did_you_mean(run, names, "list them with `gradus runs`"))
    body = read_settings(runs / run)
    if "recipe" not in body:
        raise UsageError(f"run {run} is a single `{body['verb']}`", hint=f"call `gradus {body['verb']}` again")
    return parse_recipe(body["recipe"], str(path))


def _calls(folder: Path) -> list[Call]:
    """Every stage that the run began or reused, in order, each once."""
    events = [e for e in read_events(folder) if e["event"] in ("stage_started", "stage_reused")]
    return list(dict.fromkeys((e["stage"], e["round"], e["purpose"]) for e in events))


def _chosen(calls: list[Call], run: str, stage: str, round_index: int | None, *, changed: bool) -> list[Call]:
    """The calls of the run that are meant; UsageError names those there are instead."""
    found = [call for call in calls if call[0] == stage]
    if changed and stage == "curate":  # the plans of profiling and evaluation have settings of their own
        found = [call for call in found if call[2] == "train"]
    if not found:
        had = ", ".join(name for name in STAGES if name in {name for name, _, _ in calls})
        what = "stage it could change" if any(name == stage for name, _, _ in calls) else "stage"
        raise UsageError(f"run {run} had no {what} {stage}", hint=f"its stages are {had}" if had else "it did nothing")
    rounds = sorted({index for _, index, _ in found})
    if round_index is not None and round_index not in rounds:
        raise UsageError(f"run {run} had no {stage} in round {round_index}", hint=f"it had one in {_rounds(rounds)}")
    return [call for call in found if round_index in (None, call[1])]


def _rounds(rounds: Sequence[int]) -> str:
    """Rounds in words: `round 0`, `rounds 1 to 18`, `rounds 0, 5, 10`."""
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    if len(rounds) > 2 and list(rounds) == list(range(rounds[0], rounds[-1] + 1)):
        return f"rounds {rounds[0]} to {rounds[-1]}"
    return f"rounds {', '.join(map(str, rounds))}"


def _changed(recipe: Recipe, override: Override) -> Recipe:
    """The recipe with the change; UsageError unless it fits every stage that it is meant for."""
    for key in override.changes:
        if key in _GIVEN.get(override.stage, ()):
            raise UsageError(f"{override.stage}.{key} is decided by the run, not set", hint="change the recipe instead")
    changed = recipe.model_copy(update={"overrides": (*recipe.overrides, override)})
    return parse_recipe(changed.model_dump(mode="json"), "--set")
