"""`compare --dry-run`: what each training would reuse and compute, and what that costs. Nothing starts."""

from collections.abc import Sequence
from typing import TypedDict

from gradus.flows.console.output import line, table
from gradus.flows.loop.comparing.checked import Checked
from gradus.flows.loop.dry_run import look_ahead
from gradus.flows.loop.reruns import Rerun
from gradus.tasks.config.settings import Home

FIRST_ROUND = "these are the first rounds alone"


class ForeseenTraining(TypedDict):
    """One training of a comparison to come; None for what was never measured."""

    method: str
    seed: int
    run: str
    reused: int
    computed: int
    tokens: int | None
    seconds: float | None


class ComparisonForecast(TypedDict):
    """Forecast of a comparison."""

    trainings: list[ForeseenTraining]
    remarks: list[str]


def look_ahead_comparison(home: Home, asked: Checked) -> ComparisonForecast:
    """Return what a comparison would do, or of one with tuning what that would.

    Of a budget in tokens or seconds it is what the first rounds alone would do.
    """
    tuning, budget = asked.tuning, asked.budget
    methods, seeds = (tuning.variants(), tuning.seeds) if tuning else (asked.methods, asked.seeds)
    trainings: list[ForeseenTraining] = []
    for seed in seeds:
        for method in methods:
            recipe = method.with_seed(seed)
            seen = recipe if budget.unit == "rounds" else recipe.model_copy(update={"rounds": 1})
            found = look_ahead(home, Rerun(seen, None))
            stages = found["stages"].values()
            trainings.append(
                {
                    "method": method.name,
                    "seed": seed,
                    "run": found["run"],
                    "reused": sum(each["reused"] for each in stages),
                    "computed": sum(each["computed"] for each in stages),
                    "tokens": found["tokens"],
                    "seconds": found["seconds"],
                }
            )
    remarks = [
        "each training is looked at alone: what several would compute is computed once, and reused by the others"
    ]
    if budget.unit != "rounds":
        remarks.append(
            f"{FIRST_ROUND}: whether {budget} are reached is asked after each round, so how many there will be depends "
            f"on {'the lengths of completions' if budget.unit == 'tokens' else 'the machine'}"
        )
    if tuning:
        remarks.append(
            f"this is the tuning, of {len(trainings)} trainings{_cost(trainings)}; after it, "
            f"{len(asked.methods) * len(asked.seeds)} trainings of the comparison follow with the values chosen"
        )
    return {"trainings": trainings, "remarks": remarks}


def _cost(trainings: Sequence[ForeseenTraining]) -> str:
    """Return what trainings cost if that is known of all."""
    tokens, seconds = [t["tokens"] for t in trainings], [t["seconds"] for t in trainings]
    if None in tokens or None in seconds:
        return ""
    return f" with at most {sum(filter(None, tokens)):,} tokens and {sum(filter(None, seconds)):,.0f} s"


def render_comparison_ahead(found: ComparisonForecast) -> None:
    """A line for each training."""
    rows = [
        (each["method"], each["seed"], each["run"], each["reused"], each["computed"], _known(each["tokens"]),
         _known(each["seconds"]))
        for each in found["trainings"]
    ]  # fmt: skip
    table("", ("method", "seed", "run", "reused", "computed", "tokens", "seconds"), rows)
    for remark in found["remarks"]:
        line(f"note: {remark}")
    line("nothing was started; time and tokens are those of the nearest stages computed before")


def _known(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
