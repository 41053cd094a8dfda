"""Compare existing trainings, read from journals and the lake; `compare --verify`. Does not import Prefect."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from gradus.data.errors import BadInputError, OnDamage, UsageError, refuse
from gradus.data.lake.store import Store
from gradus.flows.loop.comparing.budget import Budget, parse_budget
from gradus.flows.loop.comparing.methods import chosen_names, read_tuned
from gradus.flows.loop.comparing.plan import read_plan
from gradus.flows.loop.reruns import stored_recipe
from gradus.flows.loop.variants import Variant, other_judges, refuse_single, refuse_unpaired
from gradus.flows.recipe.config import lasting
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import span
from gradus.tasks.inspect.comparing.figures import Comparison, Fields
from gradus.tasks.inspect.comparing.planning import TuningRecord
from gradus.tasks.inspect.comparing.report import Terms, compare
from gradus.tasks.inspect.comparing.trainings import Methods, read_training, recount
from gradus.tasks.inspect.reasons import flat
from gradus.tasks.runs.history import ComputedSeconds, run_folder
from gradus.tasks.tracking.facts import COMPARISON, PLAN
from gradus.tasks.tracking.names import flat_params


def compared_trainings(
    home: Home,
    methods: Sequence[tuple[str, Sequence[str]]],
    terms: Terms,
    budget: Budget | None = None,
    remarks: Sequence[str] = (),
    on_damage: OnDamage = refuse,
) -> Comparison:
    """Compare methods by name and their runs, one a seed; runs are paired in the order given."""
    store, computed = Store(home.lake), ComputedSeconds(home.runs, on_damage)
    found = {name: [read_training(store, home.runs / run, computed) for run in runs] for name, runs in methods}
    variants = [Variant(name, stored_recipe(home.runs, runs[0])) for name, runs in methods]
    notes = [*remarks, *other_judges(variants), *_of_budget(found, budget)]
    terms = replace(terms, budget=str(budget) if budget else "", settings=_differing_settings(variants))
    return compare(found, terms, notes)


def compared_runs(home: Home, names: Sequence[str], terms: Terms, on_damage: OnDamage = refuse) -> Comparison:
    """Compare existing runs, those that differ in their seed alone as one method; UsageError if that cannot be."""
    runs = [run_folder(home.runs, name).name for name in names]
    recipes = {run: stored_recipe(home.runs, run) for run in dict.fromkeys(runs)}
    by_settings: dict[str, list[str]] = {}
    for run, recipe in recipes.items():
        settings = json.dumps({key: value for key, value in lasting(recipe).items() if key != "seed"}, sort_keys=True)
        by_settings.setdefault(settings, []).append(run)
    groups = [sorted(group, key=lambda run: (recipes[run].seed, run)) for group in by_settings.values()]
    called = [group[0] + (f" and {len(group) - 1} more" if len(group) > 1 else "") for group in groups]
    refuse_single(len(groups), min(map(len, groups)))
    refuse_unpaired([Variant(name, recipes[group[0]]) for name, group in zip(called, groups, strict=True)])
    common = set.intersection(*({recipes[run].seed for run in group} for group in groups))
    if not common and any(len(group) > 1 for group in groups):
        message = "the methods have no seed in common"
        raise UsageError(message, hint="train them with the same seeds: gradus compare RECIPE...")
    kept = [[run for run in group if not common or recipes[run].seed in common] for group in groups]
    apart = [] if common else ["the trainings have different seeds: differences are paired by problem alone"]
    methods = list(zip(called, kept, strict=True))
    return compared_trainings(home, methods, terms, remarks=apart, on_damage=on_damage)


def _differing_settings(methods: Sequence[Variant]) -> list[Fields]:
    """Return every setting that is not the same for all methods, the seed left out."""
    bodies = [m.recipe.model_dump(mode="json", exclude={"seed"}) for m in methods]
    flat = [flat_params(body) for body in bodies]
    return [
        {"setting": key, "values": {m.name: each.get(key, "-") for m, each in zip(methods, flat, strict=True)}}
        for key in sorted({key for each in flat for key in each})
        if len({each.get(key) for each in flat}) > 1
    ]


def _of_budget(methods: Methods, budget: Budget | None) -> list[str]:
    """Remark on a budget that does not repeat, and on tokens over it."""
    if budget is None or budget.unit == "rounds":
        return []
    if budget.unit == "seconds":
        return ["a budget in seconds does not repeat: another machine, or another hour, trains for other rounds"]
    over = {name: span([each.tokens - budget.amount for each in trainings]) for name, trainings in methods.items()}
    overspent = [f"{name} {text}" for name, text in over.items()]
    return [f"a training ends after the round in which it reaches {budget}; tokens over it: {', '.join(overspent)}"]


class Verified(TypedDict):
    """Number of results of a comparison computed again and found equal; a comparison that differs is an error."""

    run: str
    figures: int
    evaluations: int
    plan: str


def verify_comparison(home: Home, name: str) -> Verified:
    """Compute a kept comparison again, and count the verdicts of its evaluations in their scores.

    Raise UsageError if the run is not a comparison, BadInputError for a figure that is not what the lake says.
    """
    folder = run_folder(home.runs, name)
    body = json.loads((folder / "run.json").read_bytes())
    kept = folder / COMPARISON
    if body.get("verb") != "compare" or "margin" not in body or not kept.is_file():
        message = f"run {folder.name} is no finished comparison of this version"
        raise UsageError(message, hint="name one (`gradus runs`), or repeat its command")
    plan = read_plan(folder / PLAN)
    stored = json.loads(kept.read_bytes())
    failures = {"failed": stored["failed"]} if "failed" in stored else {}
    failed = {each["method"] for each in stored.get("failed", [])}
    methods: list[tuple[str, list[str]]] = [each for each in body["methods"].items() if each[0] not in failed]
    record: TuningRecord | None = body.get("tuning")
    tried = [each for method in stored.get("tuning", {}).get("methods", []) for each in method["tried"]]
    untuned = {each["runs"][0]: each["failed"] for each in tried if "failed" in each}
    tuned = read_tuned(home, record, untuned, body["cluster"]) if record else None
    terms = Terms(body["margin"], body["cluster"], plan, tuned)
    again = {**compared_trainings(home, methods, terms, parse_budget(body["budget"])), **failures}
    found, there = flat(json.loads(json.dumps(again))), flat(stored)
    if tuned and (others := set(body["methods"]) - set(chosen_names(tuned))):
        message = f"{folder.name} compares {min(others)}, which its tuning does not choose"
        raise BadInputError(message, hint="the same command of `gradus compare` compares what it chooses")
    wrong = [at for at in {**there, **found} if not (at in there and at in found and _same(there[at], found[at]))]
    if wrong:
        raise BadInputError(
            f"{len(wrong)} of {len(found)} figures of {folder.name} are not what the lake says; the first is "
            f"{wrong[0]}: {there.get(wrong[0])} is kept, {found.get(wrong[0])} is computed",
            hint="the same command of `gradus compare` writes them anew",
        )
    store, computed = Store(home.lake), ComputedSeconds(home.runs)
    runs = [run for _, of_method in methods for run in of_method]
    if tuned:
        tried = [each for method in tuned.figures["methods"] for each in method["tried"]]
        runs += [run for each in tried if each["pass_at_1"] is not None for run in each["runs"]]
    counted = recount([read_training(store, home.runs / run, computed) for run in runs])
    return {"run": folder.name, "figures": len(found), "evaluations": counted, "plan": plan["digest"]}


def _same(one: object, other: object) -> bool:
    """Return whether two values are equal, numbers up to rounding."""
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return one == other
