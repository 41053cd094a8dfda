"""Methods side by side: compare, and before anything is trained what a comparison could detect, and would compute."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.flows.library.calling import Input, call, computing, named, taking
from gradus.flows.library.results import Run
from gradus.flows.loop.comparing.asked import Asked
from gradus.flows.recipe.budget import HOW
from gradus.flows.recipe.config import RECIPES
from gradus.tasks.config.evaluate import MARGIN
from gradus.tasks.config.settings import Home

if TYPE_CHECKING:
    from gradus.flows.loop.dry_run import ComparisonForecast
    from gradus.tasks.inspect.comparing.figures import Comparison
    from gradus.tasks.inspect.comparing.planning import Plan


def _asked(
    recipes: Sequence[Input | Run],
    *,
    method: Sequence[str] = (),
    budget: str = "",
    seeds: int = 5,
    set: Sequence[str] = (),  # noqa: A002 - called as on the command line
    margin: float = 100 * MARGIN,
    cluster: str = "",
    tune: Sequence[str] = (),
    tune_seeds: int = 1,
    tune_on: Input = "",
) -> Asked:
    names = [each.name if isinstance(each, Run) else named(each) for each in recipes]
    if not names:
        raise UsageError("there is nothing to compare", hint="name recipes, with a budget, or runs that are there")
    if min(seeds, tune_seeds) < 1 or not 0 < margin < 100:
        raise UsageError(
            f"seeds = {seeds}, tune_seeds = {tune_seeds} and margin = {margin:g}",
            hint="seeds from 1 on, a margin above 0 points",
        )
    return Asked(names, budget, seeds, set, margin, cluster, tune, tune_seeds, named(tune_on), method)


@call
@taking(_asked)
def compare(asked: Asked) -> "Comparison":
    """Judge recipes at equal cost, each pair: better, worse, equivalent within a margin, or undecided.

    With a `budget` (rounds=N, tokens=N, seconds=N) each recipe is trained, or its training reused, with the same seeds;
    without one, `recipes` are runs that are there. `method` has methods by name or .toml file: each is laid over each
    recipe and is a row of its own, `a+b` both in one, `none` the recipe itself; without a budget they take the recipe's
    own rounds. `set` has texts `key=value`, and a key that is there several times makes a method of each value. `tune`
    has texts `key=a,b,c`: each method is trained with each of these values and `tune_seeds` seeds of their own, and
    compared at the best of them by pass@1 on the problems of `tune_on`, or on a fifth of the evaluated ones; these
    problems are not judged.
    """
    return compared(asked)


@call
@taking(_asked)
def plan_comparison(asked: Asked) -> "Plan":
    """Return which difference a comparison can detect, and what it costs; nothing is started."""
    return planned_comparison(asked)


@call
@taking(_asked)
def dry_compare(asked: Asked) -> "ComparisonForecast":
    """Return what each training of `compare` would compute and reuse, and what that costs; nothing is started."""
    return foreseen_comparison(asked)


def compared(asked: Asked, on_damage: OnDamage = refuse) -> "Comparison":
    """Train the methods, or reuse their trainings, and compare them; without a budget, compare runs that are there."""
    from gradus.flows.loop.comparing.checked import checked

    home = Home.from_environment()
    if not (asked.budget or asked.method):
        return _there(home, asked, on_damage)
    checked(home, asked)
    with computing() as ready:
        from gradus.flows import comparison  # Prefect, which a wrong recipe need not wait for

        ready()
        return cast("Callable[..., Comparison]", comparison.compare)(**vars(asked))


def planned_comparison(asked: Asked) -> "Plan":
    """Return which difference can be detected."""
    from gradus.flows.loop.comparing.checked import checked
    from gradus.flows.loop.comparison_plan import plan_of

    home = Home.from_environment()
    return plan_of(home, checked(home, asked))


def foreseen_comparison(asked: Asked) -> "ComparisonForecast":
    """Return what a comparison would do."""
    from gradus.flows.loop.comparing.checked import checked
    from gradus.flows.loop.dry_run import look_ahead_comparison

    home = Home.from_environment()
    return look_ahead_comparison(home, checked(home, asked))


def _there(home: Home, asked: Asked, on_damage: OnDamage) -> "Comparison":
    """Compare runs that are there; nothing is computed."""
    from gradus.flows.loop.compared import compared_runs
    from gradus.tasks.inspect.comparing.report import Terms

    if asked.tune or asked.tune_on or asked.tune_seeds != 1:
        raise UsageError("--tune trains recipes", hint="give a budget, for example --budget rounds=10")
    if asked.set:
        raise UsageError("--set changes recipes that are trained", hint="give a budget, for example --budget rounds=10")
    for name in asked.recipes:
        if name.endswith(".toml") or (RECIPES / f"{name}.toml").is_file():
            raise UsageError(f"{name} is a recipe, and there is no budget to train it with", hint=HOW)
    return compared_runs(home, asked.recipes, Terms(asked.margin / 100, asked.cluster), on_damage)
