"""`compare --verify`: every figure of a kept comparison, computed again from the lake. Nothing is written."""

import json
import math
from typing import TypedDict

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.store import Store
from gradus.flows.loop.comparing.budget import parse_budget
from gradus.flows.loop.comparing.compared import compared_trainings
from gradus.flows.loop.comparing.methods import chosen_names, read_tuned
from gradus.flows.loop.comparing.plan import read_plan
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.planning import TuningRecord
from gradus.tasks.inspect.comparing.report import Terms
from gradus.tasks.inspect.comparing.trainings import read_training, recount
from gradus.tasks.inspect.reasons import flat
from gradus.tasks.runs.history import ComputedSeconds, run_folder
from gradus.tasks.tracking.facts import COMPARISON, PLAN


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
