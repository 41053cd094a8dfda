"""A comparison that can begin: its methods, and the values tried of each, checked before anything starts.

Tuning has seeds of its own, those after the seeds of the comparison. It reads problems that the comparison leaves out:
those of `--tune-on`, or a part of the evaluated ones. Does not import Prefect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from gradus.data.errors import UsageError, shortened
from gradus.data.lake.store import Store
from gradus.flows.loop.comparing.budget import Asked, Budget, parse_budget
from gradus.flows.loop.inputs import as_run, run_name
from gradus.flows.loop.reruns import read_recipe
from gradus.flows.loop.variants import (
    Variant,
    methods_of,
    other_judges,
    refuse_single,
    refuse_unpaired,
    same_problems,
)
from gradus.flows.parameters import named
from gradus.flows.recipe.assignments import split_assignment
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.reading import recipe_from
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.planning import Attempted, Tuned, TuningRecord, tune
from gradus.tasks.inspect.comparing.trainings import read_training
from gradus.tasks.runs.history import ComputedSeconds

MAX_COMBINATIONS = 32
_SUITE = "tuning"


@dataclass(frozen=True)
class Grid:
    """Methods, each to be trained with each seed."""

    methods: Sequence[Variant]
    seeds: range

    def runs(self) -> dict[str, list[str]]:
        """Return the names that the runs of each method will have, one a seed."""
        return {m.name: [run_name(as_run(m.with_seed(seed))) for seed in self.seeds] for m in self.methods}


@dataclass(frozen=True)
class Tuning(Grid):
    """The trainings of each method with each of the values tried."""

    values: Sequence[Mapping[str, str]]
    compared: Mapping[str, Sequence[Variant]]
    """Each method with these values, in their order, as it is compared if they are chosen."""
    on: str

    def record(self, runs: Mapping[str, list[str]]) -> TuningRecord:
        """Return the values tried of each method with their runs."""
        methods: dict[str, list[Attempted]] = {
            name: [
                {"values": dict(tried), "runs": runs[each.name]}
                for tried, each in zip(self.values, variants, strict=True)
            ]
            for name, variants in self.compared.items()
        }
        return {"on": self.on, "methods": methods}

    def chosen(self, tuned: Tuned) -> list[Variant]:
        """Return each method with its chosen values; one of which all failed is left out."""
        by_name = {each.name: each for variants in self.compared.values() for each in variants}
        return [by_name[name] for name in chosen_names(tuned)]


@dataclass(frozen=True)
class Checked(Grid):
    """A comparison that can begin; its methods have the values of their recipes until they are tuned."""

    asked: Asked
    budget: Budget
    tuning: Tuning | None

    @property
    def margin(self) -> float:
        """The margin of equivalence as a share."""
        return self.asked.margin / 100


def checked(home: Home, asked: Asked) -> Checked:
    """Return methods, seeds, budget and tuning; UsageError or BadInputError before anything starts."""
    own = [text for text in asked.set if split_assignment(text)[0] == "rounds"]
    if own[1:] or (own and asked.budget):
        hint = "write --budget rounds=N" + (" in its place" if asked.budget else ", or --set rounds=N once")
        raise UsageError(f"--set {own[-1]}: all methods have the same budget", hint=hint)
    if not asked.budget:
        rounds = read_recipe(home.runs, asked.names[0], own)[0].rounds
        asked = replace(asked, budget=f"rounds={rounds}")
    limit = parse_budget(asked.budget)
    tried = tried_of(asked.tune, asked.set)
    if not tried and (asked.tune_on or asked.tune_seeds != 1):
        raise UsageError("there is nothing to tune", hint="name values: --tune update.lr=1e-5,3e-5,1e-4")
    amount = limit.amount if limit.unit == "rounds" else None
    methods = methods_of(home.runs, asked.names, asked.set, amount, asked.method)
    refuse_single(len(methods), asked.seeds)
    first = methods[0].recipe.seed
    seeds = range(first, first + asked.seeds)
    tuning = tuning_of(methods, tried, seeds, asked.tune_seeds, named(asked.tune_on)) if tried else None
    for method in (*methods, *(tuning.methods if tuning else ())):
        check_recipe(method.recipe, home.lake)
    return Checked(methods, seeds, asked, limit, tuning)


def tried_of(texts: Sequence[str], sets: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each setting in texts `key=a,b,c`, as typed; UsageError for values that cannot be tried."""
    values: dict[str, list[str]] = {}
    for text in texts:
        key, _, several = (part.strip() for part in text.partition("="))
        if not key or not several:
            raise UsageError(f"--tune {shortened(text)} has no values", hint="write --tune update.lr=1e-5,3e-5,1e-4")
        values.setdefault(key, []).extend(_split(several))
    alone = [key for key, tried in values.items() if len(tried) < 2]
    both = [key for text in sets if (key := split_assignment(text)[0]) in values]
    number = prod(len(tried) for tried in values.values())
    if alone:
        raise UsageError(
            f"--tune {alone[0]} has one value", hint=f"give several, or set it: --set {alone[0]}={values[alone[0]][0]}"
        )
    if both:
        raise UsageError(f"{both[0]} is both tuned and set", hint="leave one of them out")
    if number > MAX_COMBINATIONS:
        message = f"--tune makes {number} combinations of values, more than {MAX_COMBINATIONS}"
        raise UsageError(message, hint="try fewer values, or tune one setting after the other")
    return values


def tuning_of(
    methods: Sequence[Variant], tried: Mapping[str, Sequence[str]], seeds: range, num_seeds: int = 1, on: str = ""
) -> Tuning:
    """Return the tuning of methods compared with these seeds; UsageError for values that are the same."""
    combinations = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    compared, trained = {method.name: list[Variant]() for method in methods}, list[Variant]()
    for method, values in product(methods, combinations):
        variant = _with_values(method, values)
        compared[method.name].append(variant)
        trained.append(Variant(variant.name, _evaluated_on(variant.recipe, on)) if on else variant)
    of_methods = list(compared.values())
    for several in (*of_methods, *zip(*of_methods, strict=True)):
        refuse_unpaired(several)
    for several in of_methods:
        if other_judges(several):
            raise UsageError("the values tried are judged by different rewards", hint="set evaluate.score for all")
    return Tuning(trained, range(seeds.stop, seeds.stop + num_seeds), combinations, compared, on)


def read_tuned(home: Home, record: TuningRecord, failed: Mapping[str, str], cluster: str) -> Tuned:
    """Return the choice that follows from existing trainings; `failed` has reasons by the first run's name."""
    store, computed = Store(home.lake), ComputedSeconds(home.runs)
    attempts = (each for tried in record["methods"].values() for each in tried if not failed.get(each["runs"][0]))
    trainings = [read_training(store, home.runs / run, computed) for each in attempts for run in each["runs"]]
    return tune(record, trainings, failed, cluster)


def chosen_names(tuned: Tuned) -> list[str]:
    """Return the name of each method in the comparison, with the values chosen."""
    return [_called(each["method"], each["chosen"]) for each in tuned.figures["methods"] if each["chosen"]]


def _called(method: str, values: Mapping[str, str]) -> str:
    return " ".join([method, *(f"{key}={value}" for key, value in values.items())])


def _with_values(method: Variant, values: Mapping[str, str]) -> Variant:
    texts = [f"{key}={value}" for key, value in values.items()]
    recipe = recipe_from(method.recipe.model_dump(mode="json"), method.name, texts, seed=method.recipe.seed)
    return Variant(_called(method.name, values), recipe)


def _evaluated_on(recipe: Recipe, problems: str) -> Recipe:
    """Return a recipe whose main suite has other problems, and a name that says so."""
    plan = recipe.evaluate
    main = plan.main
    if same_problems(problems, main.problems) or same_problems(problems, recipe.problems):
        what = "trained on" if same_problems(problems, recipe.problems) else "evaluated in the end"
        raise UsageError(f"--tune-on {shortened(problems)}: these problems are {what}", hint="name others")
    if any(suite.name == _SUITE for suite in plan.suites):
        raise UsageError(f"a suite of {recipe.name} is called {_SUITE}", hint="call it something else")
    other = main.model_copy(update={"name": _SUITE, "problems": problems})
    suites = tuple(other if suite.name == main.name else suite for suite in plan.suites)
    select = _SUITE if plan.select == main.name else plan.select
    return recipe.model_copy(update={"evaluate": plan.model_copy(update={"suites": suites, "select": select})})


def _split(text: str) -> list[str]:
    """Split a text at the commas outside of brackets and quotes."""
    values, begun = list[str](), ""
    for part in text.split(","):
        begun = f"{begun},{part}" if begun else part
        if begun.count("[") == begun.count("]") and begun.count("{") == begun.count("}") and not begun.count('"') % 2:
            values.append(begun.strip())
            begun = ""
    if begun or not all(values):
        raise UsageError(f"--tune: {shortened(text)} has an empty value, or a bracket that does not close", hint="")
    return values
