"""A comparison that can begin: methods, seeds, budget and tuning, checked before anything starts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradus.data.errors import UsageError
from gradus.flows.loop.comparing.budget import Asked, Budget, parse_budget
from gradus.flows.loop.comparing.tuning import Tuning, tried_of, tuning_of
from gradus.flows.loop.inputs import as_run, run_name
from gradus.flows.loop.reruns import read_recipe
from gradus.flows.loop.variants import Variant, methods_of, refuse_single
from gradus.flows.parameters import named
from gradus.flows.recipe.assignments import split_assignment
from gradus.flows.recipe.checking import check_recipe
from gradus.tasks.config.settings import Home


@dataclass(frozen=True)
class Checked:
    """A comparison that can begin; its methods have the values of their recipes until they are tuned."""

    asked: Asked
    methods: Sequence[Variant]
    seeds: range
    budget: Budget
    tuning: Tuning | None
    is_tuned: bool = False
    """True if its methods have the values that its tuning chose."""

    @property
    def margin(self) -> float:
        """The margin of equivalence as a share."""
        return self.asked.margin / 100

    def runs(self) -> dict[str, list[str]]:
        """The names that the runs of each method will have."""
        return {m.name: [run_name(as_run(m.with_seed(seed))) for seed in self.seeds] for m in self.methods}


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
    for method in (*methods, *(tuning.variants() if tuning else ())):
        check_recipe(method.recipe, home.lake)
    return Checked(asked, methods, seeds, limit, tuning)
