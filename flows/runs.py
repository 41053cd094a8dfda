"""The flow of whole runs, and what it answers at the end."""

import hashlib
import json
import time
from collections import defaultdict
from typing import Any

from data.store import Ref
from flows.ahead import overlapping
from flows.config import Recipe, parse_recipe, refuse_unjudged, stage_config
from flows.measuring import pass_at_1
from flows.session import RunSpec, open_session
from flows.stages import problems_ref
from flows.training import Inputs, Trained, train
from flows.verbs import gradus_flow
from tasks.pins import pinned
from tasks.policies import refuse_training
from tasks.stage import Outcome, Session
from tasks.supply import supply

Json = dict[str, Any]


@gradus_flow("train")
def train_flow(recipe: Recipe, run: str | None = None, forced: list[tuple[str, int, str]] | None = None) -> Json:
    """Rounds of curate, rollout, score and update as a recipe says; the same recipe goes on where it stopped."""
    started = time.perf_counter()
    refuse_unjudged(recipe)
    recipe = overlapping(_pinned(recipe))
    body = recipe.model_dump(mode="json")
    spec = RunSpec(
        name=run or run_name(recipe),
        verb="train",
        seed=recipe.seed,
        body={"recipe": body},
        read=_in_this_version,
        forced=frozenset((stage, index, purpose) for stage, index, purpose in forced or []),
    )
    with open_session(spec, apart=bool(recipe.overlap)) as session:
        policy = supply(session.store, recipe.policy, "checkpoints")
        refuse_training(session.store, policy)
        trained = train(session, recipe, _inputs(session, recipe, policy))
        how = (trained.choice.remark or trained.choice.how) if trained.choice else "the last checkpoint"
        session.journal.model_alias("policy", "champion", str(trained.best), note=how)
        session.journal.model_alias("policy", "newest", str(trained.policy))
        return _answer(spec.name, session, recipe, trained, time.perf_counter() - started)


def _pinned(recipe: Recipe) -> Recipe:
    """The recipe with the digests of all files that its rewards come from, as they are now."""
    suites = tuple(
        suite.model_copy(update={"score": pinned(suite.score, renew=True)}) if suite.score else suite
        for suite in recipe.evaluate.suites
    )
    evaluate = recipe.evaluate.model_copy(update={"suites": suites})
    return recipe.model_copy(update={"score": pinned(recipe.score, renew=True), "evaluate": evaluate})


def _inputs(session: Session, recipe: Recipe, policy: Ref) -> Inputs:
    """The problems of training and of each suite, as artefacts."""
    ingest = stage_config(recipe, "ingest", 0, recipe.ingest)
    plan = recipe.evaluate
    return Inputs(
        policy=policy,
        problems=problems_ref(session, recipe.problems, ingest),
        suites={s.name: problems_ref(session, s.problems, ingest, plan.purpose(s)) for s in plan.suites},
    )


def run_name(recipe: Recipe) -> str:
    """The recipe's name and eight digits of its digest: the same settings are the same run."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True)
    return f"{recipe.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _in_this_version(body: Json) -> Json:
    """The body of a run that an earlier version may have written, as this version writes it."""
    recipe = parse_recipe(body["recipe"], "the run's recipe") if "recipe" in body else None
    return {**body, "recipe": recipe.model_dump(mode="json")} if recipe else body


def _answer(run: str, session: Session, recipe: Recipe, trained: Trained, seconds: float) -> Json:
    main = trained.figures[recipe.evaluate.main.name]
    suites = {
        name: {"before": dict(f.before.summary), "after": dict(f.after.summary), "best": dict(f.best.summary)}
        for name, f in trained.figures.items()
    }
    return {
        "run": run,
        "rounds": recipe.rounds,
        "updates": sum(_count(o, "updates") for o in session.outcomes),
        "tokens_generated": sum(_count(o, "tokens_generated") for o in session.outcomes if not o.reused),
        "tokens_trained": sum(_count(o, "tokens_trained") for o in session.outcomes if not o.reused),
        "seconds": round(seconds, 2),
        "stages": _stages(session.outcomes),
        "before": dict(main.before.summary),
        "after": dict(main.after.summary),
        "gain": pass_at_1(main.after) - pass_at_1(main.before),
        "suites": suites,
        "choice": trained.choice.as_dict() if trained.choice else None,
        "remarks": [trained.choice.remark] if trained.choice and trained.choice.remark else [],
        "policy": str(trained.policy),
        "best": str(trained.best),
        "out": str(session.store.path(trained.policy)),
    }


def _count(outcome: Outcome, key: str) -> int:
    return int(outcome.summary.get(key, 0))


def _stages(outcomes: list[Outcome]) -> Json:
    table: dict[str, dict[str, float]] = defaultdict(lambda: {"ran": 0, "reused": 0, "seconds": 0.0})
    for outcome in outcomes:
        row = table[outcome.stage]
        row["reused" if outcome.reused else "ran"] += 1
        row["seconds"] = round(row["seconds"] + outcome.seconds, 3)
    return dict(table)
