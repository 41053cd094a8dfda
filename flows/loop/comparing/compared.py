"""Compare existing trainings, read from their journals and the lake. Does not import Prefect."""

import json
from collections.abc import Sequence
from dataclasses import replace

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.data.lake.store import Store
from gradus.flows.loop.comparing.budget import Budget
from gradus.flows.loop.reruns import stored_recipe
from gradus.flows.loop.variants import Variant, other_judges, refuse_single, refuse_unpaired
from gradus.flows.recipe.config import lasting
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import span
from gradus.tasks.inspect.comparing.figures import Comparison, Fields
from gradus.tasks.inspect.comparing.report import Terms, compare
from gradus.tasks.inspect.comparing.trainings import Methods, read_training
from gradus.tasks.runs.history import ComputedSeconds, run_folder
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
