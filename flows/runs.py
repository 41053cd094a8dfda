"""The flows of whole runs: `train`, `demo` and `rerun`, and what they say at the end."""

import hashlib
import json
import time
from collections import defaultdict
from typing import Any

from prefect import flow

from data.errors import UsageError
from flows.ahead import overlapping
from flows.config import Override, Recipe, load_recipe, parse_recipe, refuse_unjudged, toml_value
from flows.session import RunSpec, open_session
from flows.stages import problems_ref
from flows.training import Inputs, Trained, pass_at_1, train
from tasks.pins import pinned
from tasks.policies import refuse_training
from tasks.settings import Home
from tasks.stage import Outcome, Session
from tasks.supply import supply

Json = dict[str, Any]


@flow(name="train")
def train_flow(recipe: Recipe, run: str | None = None, forced: list[tuple[str, int, str]] | None = None) -> Json:
    """Rounds of curate, rollout, score and update as a recipe says; the same recipe goes on where it stopped."""
    started = time.perf_counter()
    refuse_unjudged(recipe)
    recipe = overlapping(recipe.model_copy(update={"score": pinned(recipe.score, renew=True)}))
    body = recipe.model_dump(mode="json")
    spec = RunSpec(
        name=run or run_name(recipe),
        verb="train",
        seed=recipe.seed,
        body={"recipe": body},
        forced=frozenset((stage, index, purpose) for stage, index, purpose in forced or []),
    )
    with open_session(spec, apart=bool(recipe.overlap)) as session:
        policy = supply(session.store, recipe.policy, "checkpoints")
        refuse_training(session.store, policy)
        start = Inputs(
            policy=policy,
            problems=problems_ref(session, recipe.problems, recipe.ingest),
            heldout=problems_ref(session, recipe.evaluate.problems, recipe.ingest),
        )
        trained = train(session, recipe, start)
        session.journal.model_alias("policy", "champion", str(trained.best))
        session.journal.model_alias("policy", "newest", str(trained.policy))
        return _answer(spec.name, session, recipe, trained, time.perf_counter() - started)


def run_name(recipe: Recipe) -> str:
    """The recipe's name and eight digits of its digest: the same settings are the same run."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True)
    return f"{recipe.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def rerun(run: str, stage: str, round_index: int | None, assignments: list[str]) -> Json:
    """A run again with one stage forced or changed: upstream reused, downstream recomputed."""
    path = Home.from_environment().runs / run / "run.json"
    if not path.is_file():
        raise UsageError(f"there is no run {run}", hint="list them with `gradus runs`")
    body = json.loads(path.read_text())
    if "recipe" not in body:
        raise UsageError(f"run {run} is a single `{body['verb']}`", hint=f"call `gradus {body['verb']}` again")
    recipe = parse_recipe(body["recipe"], str(path))
    if not assignments:
        rounds = [round_index] if round_index is not None else range(recipe.rounds + 1)
        purposes = ["train", "eval", "profile", *(f"hint{level}" for level in recipe.escalate)]
        return train_flow(recipe, run, [(stage, r, p) for r in rounds for p in purposes])
    changes = dict(_assignment(text) for text in assignments)
    override = Override(stage=stage, round=round_index, changes=changes)
    return train_flow(recipe.model_copy(update={"overrides": (*recipe.overrides, override)}))


def demo(assignments: list[str], engine: str | None, rounds: int | None, run: str | None) -> Json:
    """The whole loop on bundled problems and the bundled policy."""
    chosen = [*assignments, *([f"rollout.engine={engine}"] if engine else [])]
    return train_flow(load_recipe("demo", chosen, rounds=rounds), run)


def _assignment(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--set {text!r} is not an assignment", hint="write it as --set max_error_frac=0.1")
    return key.strip(), toml_value(value.strip())


def _answer(run: str, session: Session, recipe: Recipe, trained: Trained, seconds: float) -> Json:
    return {
        "run": run,
        "rounds": recipe.rounds,
        "updates": sum(_count(o, "updates") for o in session.outcomes),
        "tokens_generated": sum(_count(o, "tokens_generated") for o in session.outcomes if not o.reused),
        "tokens_trained": sum(_count(o, "tokens_trained") for o in session.outcomes if not o.reused),
        "seconds": round(seconds, 2),
        "stages": _stages(session.outcomes),
        "before": dict(trained.before.summary),
        "after": dict(trained.after.summary),
        "gain": pass_at_1(trained.after) - pass_at_1(trained.before),
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
