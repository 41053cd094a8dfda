"""`compare --plan`: the smallest detectable difference and the cost, from stored trainings. Nothing starts."""

import contextlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path

from gradus.data.errors import BadInputError, GradusError
from gradus.data.files import replace_file
from gradus.data.intervals import LEVEL, POWER
from gradus.data.lake.store import Store
from gradus.flows.console.output import fields, line, notes, table
from gradus.flows.loop.comparing.budget import UNITS, Budget
from gradus.flows.loop.comparing.methods import Checked
from gradus.flows.loop.reruns import stored_recipe
from gradus.flows.loop.variants import otherwise_evaluated
from gradus.flows.recipe.suites import Suite
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import count, points
from gradus.tasks.inspect.comparing.figures import PlanNote
from gradus.tasks.inspect.comparing.planning import (
    MIN_PROBLEMS,
    Cost,
    Plan,
    count_problems,
    known_of,
    num_held_out,
    others,
    plan_remarks,
    refuse_unknown_column,
    sealed,
)
from gradus.tasks.inspect.comparing.trainings import Methods, Training, problem_ids, read_training
from gradus.tasks.runs.history import ComputedSeconds, brief, run_folders
from gradus.tasks.tracking.facts import PLAN


def plan_of(home: Home, intent: Checked, *, is_tuned: bool = False) -> Plan:
    """Return the differences that a comparison could detect, and its cost; UsageError for an unknown cluster column.

    The tuning of one that is tuned costs nothing more, and its methods have the values that it chose.
    """
    suite, runs = intent.methods[0].recipe.evaluate.main, {run for each in intent.runs().values() for run in each}
    cluster, holds_out = intent.asked.cluster, intent.tuning is not None and not intent.tuning.on
    to_tune = None if is_tuned else intent.tuning
    tuning = [run for each in to_tune.runs().values() for run in each] if to_tune else []
    refuse_unknown_column(suite.problems, cluster)
    stored = _stored(home, suite)
    of_these = {name: each for name, each in stored.items() if any(t.run in runs for t in each)}
    chosen = known_of(of_these, cluster)
    known = chosen if chosen.measured else known_of(stored, cluster)
    counted = known.problems or count_problems(suite.problems)
    evaluated = counted or MIN_PROBLEMS
    problems = evaluated - num_held_out(evaluated) if holds_out else evaluated
    units = max(1, (known.units or evaluated) * problems // evaluated)
    size = (len(intent.seeds), units, suite.sample.n)
    pairs = len(intent.methods) * (len(intent.methods) - 1) // 2
    least = known.variances.detectable(size, pairs)
    remarks = [*known.remarks, *plan_remarks(problems, least, intent.margin, measured=known.measured)]
    if not counted:
        remarks.append(f"how many problems {suite.problems} holds is not known yet: {MIN_PROBLEMS} are assumed")
    if holds_out:
        remarks.append(f"{evaluated - problems} more are held out for tuning, and not judged")
    if len(intent.seeds) == 1:
        remarks.append("one seed: the smallest detectable difference leaves out the variance between seeds")
    spent = [t for each in stored.values() for t in each]
    missing = len(runs) if tuning else _num_missing(home, runs)
    body: Plan = {
        "methods": [m.name for m in intent.methods],
        "seeds": list(intent.seeds),
        "budget": str(intent.budget),
        "problems": problems,
        "samples": suite.sample.n,
        "margin": intent.margin,
        "cluster": cluster,
        "level": LEVEL,
        "power": POWER,
        "pairs": pairs,
        "deviations": known.variances.deviations(),
        "measured": known.measured,
        "runs": list(known.runs),
        "detectable": least,
        "others": others(known, size, pairs),
        "cost": _cost(intent.budget, missing, spent),
        "before_first_token": not any((home.runs / run).exists() for run in runs),
        "remarks": remarks,
        "digest": "",
    }
    if tuning:
        body["tuning"] = _cost(intent.budget, _num_missing(home, tuning), spent)
    return {**body, "digest": sealed(body)}


def keep_plan(home: Home, intent: Checked, folder: Path) -> PlanNote:
    """Write the plan of a comparison before it begins, or read an existing one; BadInputError if that was changed."""
    path = folder / PLAN
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(plan_of(home, intent, is_tuned=True), indent=1))
    return read_plan(path)


def read_plan(path: Path) -> PlanNote:
    """Return the plan of a comparison; BadInputError if the plan was changed after it was written."""
    plan: Plan | None = None
    with contextlib.suppress(OSError, ValueError):
        plan = json.loads(path.read_bytes())
    if not isinstance(plan, dict) or plan.get("digest") != sealed(plan):
        hint = "delete it: the same command plans anew, and says that tokens had been sampled before"
        raise BadInputError(f"{path} is missing, or was changed after it was written", hint=hint)
    return {
        "digest": plan["digest"],
        "detectable": plan["detectable"],
        "measured": plan["measured"],
        "before_first_token": plan["before_first_token"],
    }


def render_plan(plan: Plan) -> None:
    """The plan for people."""
    deviations = plan["deviations"]
    table(
        "standard deviation of a difference in pass@1, points",
        ("over seeds", "over problems", "over both", "of one sample"),
        [tuple(points(deviations[name], sign=False) for name in ("seeds", "problems", "rest", "sample"))],
    )
    planned = {"seeds": len(plan["seeds"]), "problems": plan["problems"], "samples": plan["samples"]}
    sizes = [(*planned.values(), points(plan["detectable"], sign=False))]
    sizes += [(o["seeds"], o["problems"], o["samples"], points(o["detectable"], sign=False)) for o in plan["others"]]
    title = "smallest detectable difference, points"
    table(title, ("seeds", "problems", "samples", ""), sizes)
    notes(plan["remarks"])
    tuning = plan.get("tuning")
    fields(
        {
            "methods": plan["methods"],
            "measured on": f"{len(plan['runs'])} trainings" if plan["measured"] else "nothing",
            "power": f"{plan['power']:g} at a level of {plan['level']:.2g} of all pairs",
            "margin": f"{100 * plan['margin']:g} points",
            **({"to tune": _written(tuning)} if tuning else {}),
            "to train": _written(plan["cost"]),
            "digest": plan["digest"][:12],
        }
    )
    line("nothing was started; `--dry-run` forecasts each training alone")


def _written(cost: Cost) -> str:
    return f"{cost['trainings']} trainings, {count(cost['tokens'])} tokens, {count(cost['seconds'])} s"


def _stored(home: Home, suite: Suite) -> Methods:
    """Return finished trainings that were evaluated on the same problems in the same way, as methods; newest first."""
    store, computed = Store(home.lake), ComputedSeconds(home.runs)
    methods: dict[str, list[Training]] = {}
    for folder in run_folders(home.runs):
        try:
            recipe = stored_recipe(home.runs, folder.name)
            if otherwise_evaluated(suite, recipe.evaluate.main):
                continue
            training = read_training(store, folder, computed)
        except GradusError:
            continue  # runs of other kinds, and unfinished or unreadable ones, are left out
        but_rounds = recipe.model_dump(mode="json", exclude={"seed", "rounds"})  # which a budget decides
        methods.setdefault(json.dumps(but_rounds, sort_keys=True), []).append(training)
    found = {each[0].run: list({t.seed: t for t in reversed(each)}.values()) for each in methods.values()}
    ids = next((problem_ids(each[0]) for each in found.values()), None)
    return {name: each for name, each in found.items() if all(problem_ids(t).equals(ids) for t in each)}


def _num_missing(home: Home, runs: Collection[str]) -> int:
    folders = [home.runs / run for run in runs]
    return sum(not (each / "run.json").is_file() or brief(each)["status"] != "finished" for each in folders)


def _cost(budget: Budget, number: int, stored: Sequence[Training]) -> Cost:
    """Return what trainings cost, in proportion to stored ones, evaluation left out."""
    spent = {unit: sum(getattr(each, unit) for each in stored) for unit in UNITS}
    share = number * budget.amount / spent[budget.unit] if spent[budget.unit] else None
    known = {unit: None if share is None else share * amount for unit, amount in spent.items()}
    known[budget.unit] = float(number * budget.amount)
    return {"trainings": number, "tokens": known["tokens"], "seconds": known["seconds"]}
