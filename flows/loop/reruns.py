"""Check a request of `gradus rerun` against the journal of the run before anything starts. Does not import Prefect."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.data.nearest import did_you_mean
from gradus.flows.loop.round.asking import Room
from gradus.flows.recipe.assignments import Assignments, pairs
from gradus.flows.recipe.config import Recipe, lasting
from gradus.flows.recipe.guards import Override
from gradus.flows.recipe.reading import load_recipe, parse_recipe, recipe_from
from gradus.flows.recipe.setting_faults import valid
from gradus.tasks.config.learning import UPDATE
from gradus.tasks.config.rollout import WAVE
from gradus.tasks.config.rounds import MEASURE, TRACKER
from gradus.tasks.runs.history import Key, last_outputs
from gradus.tasks.runs.run_settings import read_settings
from gradus.tasks.stages.registry import stage_spec, stages


@dataclass(frozen=True)
class Rerun:
    """A run to repeat: the recipe, the run's name (none: that of its settings) and the stages computed in any case."""

    recipe: Recipe
    run: str | None
    forced: tuple[Key, ...] = ()
    like: str = ""
    """The run whose stages are computed again: what a budget left out of its waves is left out again."""


def read_recipe(
    runs: Path, name: str, assignments: Assignments, methods: Sequence[str] = (), **changes: object
) -> tuple[Recipe, str | None]:
    """Return a recipe by its file or name, or that of a run, and the run's own name unless settings make it another."""
    if name.endswith(".toml") or not (runs / name / "run.json").is_file():
        return load_recipe(name, assignments, methods, **changes), None
    stored = stored_recipe(runs, name)
    changed = recipe_from(stored.model_dump(mode="json"), f"run {name}", assignments, methods, **changes)
    return changed, name if lasting(changed) == lasting(stored) else None


def plan_rerun(
    runs: Path, run: str, stage: str, assignments: Assignments, only: int | None = None, since: int = 0
) -> Rerun:
    """Run one stage of a run again: forced, or with the recipe so changed; UsageError if that cannot be.

    In the round `only`, in all from `since` on, or in all.
    """
    if only is not None and since:
        raise UsageError("--round and --from-round exclude each other", hint="--from-round 9 means round 9 and later")
    recipe = stored_recipe(runs, run)
    done = list(last_outputs(runs / run))
    calls = _chosen(done, run, stage, only, since, changed=bool(assignments))
    # The run may have continued further than its last command asked for.
    longest = recipe.model_copy(update={"rounds": max([recipe.rounds, *(index for _, index, _ in done)])})
    if not assignments:
        return Rerun(longest, run, tuple(calls), run)
    changes = dict(pairs(assignments))
    body = {"stage": stage, "round": only, "from_round": since, "changes": changes}
    override = valid(Override, body, "--set")
    changed = longest.model_copy(update={"overrides": (*longest.overrides, override)})
    return Rerun(parse_recipe(changed.model_dump(mode="json"), "--set"), None, like=run)


def chosen_calls(folder: Path, stage: str, only: int | None) -> list[Key]:
    """Return the calls of a run that a rerun names; UsageError if there is no such stage or round."""
    return _chosen(list(last_outputs(folder)), folder.name, stage, only, changed=False)


def other_settings(folder: Path, changed: Sequence[str] = ()) -> UsageError:
    """Return the error of a run whose name is taken by other settings, or by other data in the `changed` files."""
    if changed:
        hint = "the recipe without --run makes another run of it; or put back what the file held"
        return UsageError(f"{', '.join(changed)} changed since run {folder.name} began", hint=hint)
    hint = "give this one another name with --run, repeat the settings it had, or delete its folder"
    return UsageError(f"run {folder.name} exists with other settings ({folder / 'run.json'})", hint=hint)


def stored_recipe(runs: Path, run: str) -> Recipe:
    """Return the recipe of a run; UsageError if there is no such run, or it had none."""
    path = runs / run / "run.json"
    if not path.is_file():
        names = [folder.parent.name for folder in runs.glob("*/run.json")]
        raise UsageError(f"there is no run {run}", hint=did_you_mean(run, names, "list them with `gradus runs`"))
    body = read_settings(runs / run)
    if "recipe" not in body:
        raise UsageError(f"run {run} is a single `{body['verb']}`", hint=f"call `gradus {body['verb']}` again")
    return parse_recipe(body["recipe"], str(path))


def room_of(store: Store, folder: Path) -> Room:
    """Return the room that a budget left to the waves of a run, by the plans that it ended with."""
    last = last_outputs(folder)
    plans = {call: store.find(Ref.parse(output)) for call, output in last.items() if call[0] == WAVE.name}
    fits = {call[1:]: plan.config.get("fits") for call, plan in plans.items() if plan is not None}

    def room(index: int, purpose: str, tokens: float) -> int | None:  # noqa: ARG001 - what it was bound to counts
        found = fits.get((index, purpose))
        return found if isinstance(found, int) else None

    return room


def _chosen(calls: list[Key], run: str, stage: str, only: int | None, since: int = 0, *, changed: bool) -> list[Key]:
    """Return the calls of a stage, wave, tracker, measure or role; UsageError lists the names that exist."""
    named = list(dict.fromkeys(filter(None, map(_function_of, calls))))
    if stage not in named:
        stage_spec(stage)
    found = [call for call in calls if stage in (call[0], _function_of(call))]
    if changed and stage == "curate":  # the plans of profiling and evaluation have settings of their own
        found = [call for call in found if call[2] == "train"]
    if not found:
        had = ", ".join([*(name for name in stages() if name in {name for name, _, _ in calls}), *named])
        what = "stage it could change" if any(name == stage for name, _, _ in calls) else "stage"
        raise UsageError(f"run {run} had no {what} {stage}", hint=f"its stages are {had}" if had else "it did nothing")
    rounds = sorted({index for _, index, _ in found})
    wanted = [index for index in rounds if (index >= since if only is None else index == only)]
    if not wanted:
        where = f"from round {since} on" if only is None else f"in round {only}"
        raise UsageError(f"run {run} had no {stage} {where}", hint=f"it had one in {_rounds(rounds)}")
    return [call for call in found if call[1] in wanted]


def _function_of(call: Key) -> str:
    """The wave, tracker or measure of a call by its name, or the role that it trained; empty for any other."""
    stage, _, purpose = call
    if stage == UPDATE.name and purpose != "train":
        return f"roles.{purpose}"
    if stage == WAVE.name:
        return purpose.rstrip("0123456789")
    return re.sub("-[0-9]+$", "", purpose) if stage in (TRACKER.name, MEASURE.name) else ""


def _rounds(rounds: Sequence[int]) -> str:
    """Rounds in words: `round 0`, `rounds 1 to 18`, `rounds 0, 5, 10`."""
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    if len(rounds) > 2 and list(rounds) == list(range(rounds[0], rounds[-1] + 1)):
        return f"rounds {rounds[0]} to {rounds[-1]}"
    return f"rounds {', '.join(map(str, rounds))}"
