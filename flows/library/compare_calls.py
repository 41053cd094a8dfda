"""Methods side by side: compare, and before anything is trained what a comparison could detect, and would compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.flows.library.calling import Input, call, computing, named
from gradus.flows.library.results import Run
from gradus.flows.loop.variants import Variant, methods_of, refuse_single
from gradus.flows.recipe.budget import HOW, Budget, parse_budget
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import RECIPES
from gradus.tasks.config.evaluate import MARGIN
from gradus.tasks.config.settings import Home

if TYPE_CHECKING:
    from gradus.flows.loop.comparison_ahead import ComparisonForecast
    from gradus.tasks.inspect.comparing.figures import Comparison
    from gradus.tasks.inspect.comparing.planning import Plan


@dataclass(frozen=True)
class Asked:
    """The arguments of a comparison; the margin in points."""

    names: Sequence[str]
    budget: str
    seeds: int
    sets: Sequence[str]
    margin: float
    cluster: str


@call
def compare(
    methods: Sequence[Input | Run],
    *,
    budget: str = "",
    seeds: int = 5,
    set: Sequence[str] = (),  # noqa: A002 - called as on the command line
    margin: float = 100 * MARGIN,
    cluster: str = "",
) -> "Comparison":
    """Judge recipes at equal cost, each pair: better, worse, equivalent within a margin, or undecided.

    With a `budget` (rounds=N, tokens=N, seconds=N) each recipe is trained, or its training reused, with the same seeds;
    without one, `methods` are runs that are there. `set` has texts `key=value`, and a key that is there several times
    makes a method of each value.
    """
    return compared(_asked(methods, budget, seeds, set, margin, cluster))


@call
def plan_comparison(
    methods: Sequence[Input | Run],
    *,
    budget: str,
    seeds: int = 5,
    set: Sequence[str] = (),  # noqa: A002
    margin: float = 100 * MARGIN,
    cluster: str = "",
) -> "Plan":
    """Return which difference a comparison can detect, and what it costs; nothing is started."""
    return planned_comparison(_asked(methods, budget, seeds, set, margin, cluster))


@call
def dry_compare(
    methods: Sequence[Input | Run],
    *,
    budget: str,
    seeds: int = 5,
    set: Sequence[str] = (),  # noqa: A002
) -> "ComparisonForecast":
    """Return what each training of `compare` would compute and reuse, and what that costs; nothing is started."""
    return foreseen_comparison(_asked(methods, budget, seeds, set, 100 * MARGIN, ""))


def checked_methods(home: Home, asked: Asked) -> tuple[list[Variant], Budget]:
    """Return methods and budget, after what can be refused before anything starts."""
    limit = parse_budget(asked.budget)
    methods = methods_of(home.runs, asked.names, asked.sets, limit.amount if limit.unit == "rounds" else None)
    refuse_single(len(methods), asked.seeds)
    for method in methods:
        check_recipe(method.recipe, home.lake)
    return methods, limit


def compared(asked: Asked, on_damage: OnDamage = refuse) -> "Comparison":
    """Train the methods, or reuse their trainings, and compare them; without a budget, compare runs that are there."""
    home = Home.from_environment()
    if not asked.budget:
        return _there(home, asked, on_damage)
    checked_methods(home, asked)
    with computing() as ready:
        from gradus.flows import comparison  # Prefect, which a wrong recipe need not wait for

        ready()
        sets = list(asked.sets)
        return comparison.compare(list(asked.names), asked.budget, asked.seeds, sets, asked.margin, asked.cluster)


def planned_comparison(asked: Asked) -> "Plan":
    """Return which difference can be detected."""
    from gradus.flows.loop.comparison_plan import Intent, plan_of

    home = Home.from_environment()
    methods, limit = checked_methods(home, asked)
    return plan_of(home, Intent(methods, seeds_of(methods, asked), limit, asked.margin / 100, asked.cluster))


def foreseen_comparison(asked: Asked) -> "ComparisonForecast":
    """Return what a comparison would do."""
    from gradus.flows.loop.comparison_ahead import look_ahead_comparison

    home = Home.from_environment()
    methods, limit = checked_methods(home, asked)
    return look_ahead_comparison(home, methods, seeds_of(methods, asked), limit)


def seeds_of(methods: Sequence[Variant], asked: Asked) -> range:
    """Return the seeds of each method's trainings."""
    first = methods[0].recipe.seed
    return range(first, first + asked.seeds)


def _asked(
    methods: Sequence[Input | Run],
    budget: str,
    seeds: int,
    set: Sequence[str],  # noqa: A002
    margin: float,
    cluster: str,
) -> Asked:
    names = [each.name if isinstance(each, Run) else named(each) for each in methods]
    if not names:
        raise UsageError("there is nothing to compare", hint="name recipes, with a budget, or runs that are there")
    if seeds < 1 or not 0 < margin < 100:
        raise UsageError(f"seeds = {seeds} and margin = {margin:g}", hint="seeds from 1 on, a margin above 0 points")
    return Asked(names, budget, seeds, set, margin, cluster)


def _there(home: Home, asked: Asked, on_damage: OnDamage) -> "Comparison":
    """Compare runs that are there; nothing is computed."""
    from gradus.flows.loop.compared import Conditions, compared_runs

    if asked.sets:
        raise UsageError("--set changes recipes that are trained", hint="give a budget, for example --budget rounds=10")
    for name in asked.names:
        if name.endswith(".toml") or (RECIPES / f"{name}.toml").is_file():
            raise UsageError(f"{name} is a recipe, and there is no budget to train it with", hint=HOW)
    conditions = Conditions(margin=asked.margin / 100, cluster=asked.cluster)
    return compared_runs(home, asked.names, conditions, on_damage)
