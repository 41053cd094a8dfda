"""The flow of whole runs, and what it answers at the end."""

import time
from collections.abc import Mapping

from gradus.data.errors import GateError
from gradus.flows.console.answers import StageCounts, SuiteFigures, TrainAnswer
from gradus.flows.loop.inputs import as_run, run_name, start_of
from gradus.flows.loop.measuring import pass_at_1
from gradus.flows.loop.metering import Metered
from gradus.flows.loop.training import Trained, train
from gradus.flows.recipe.budget import Budget
from gradus.flows.recipe.config import Recipe, lasting, parse_recipe, refuse_unjudged
from gradus.flows.recipe.differences import changed_settings
from gradus.flows.session import RunSpec, open_session
from gradus.flows.verbs import gradus_flow
from gradus.tasks.runs.records import RunSettings
from gradus.tasks.runs.spending import ComputedSeconds
from gradus.tasks.runtime.calls import Outcome
from gradus.tasks.runtime.stage_adapter import Session


@gradus_flow("train")
def train_flow(
    recipe: Recipe,
    run: str | None = None,
    forced: list[tuple[str, int, str]] | None = None,
    budget: Budget | None = None,
) -> TrainAnswer:
    """Rounds of curate, rollout, score and update as a recipe says, or until a budget is reached.

    The same recipe goes on where it stopped; with more rounds, from the last one.
    """
    started = time.perf_counter()
    refuse_unjudged(recipe)
    recipe = as_run(recipe)
    body = recipe.model_dump(mode="json")
    spec = RunSpec(
        name=run or run_name(recipe),
        verb="train",
        seed=recipe.seed,
        body={"recipe": body},
        changed=changed_settings(recipe),
        reported=True,
        lasting=_lasting,
        rounds=0 if budget else recipe.rounds,
        forced=frozenset((stage, index, purpose) for stage, index, purpose in forced or []),
    )
    with open_session(spec, separate_sampler=bool(recipe.overlap)) as session:
        trained = _within(session, recipe, budget)
        how = _how(trained)
        session.journal.model_alias("policy", "champion", str(trained.best), note=how)
        session.journal.model_alias("policy", "newest", str(trained.policy))
        if trained.stopped:
            raise _outside(spec.name, trained)
        return _answer(spec.name, session, recipe, trained, time.perf_counter() - started)


def _within(session: Session, recipe: Recipe, budget: Budget | None) -> Trained:
    """Train for the rounds of the recipe, or until the budget is reached."""
    if budget is None:
        return train(session, recipe, start_of(session, recipe))
    metered = Metered(session, ComputedSeconds(session.journal.folder.parent))
    start = start_of(metered, recipe)
    return train(metered, recipe, start, lambda index: metered.has_spent(budget, index))


def _how(trained: Trained) -> str:
    """How the best policy was chosen, in a line for the registry."""
    if trained.stopped:
        return f"the best policy before {trained.stopped}"
    return (trained.choice.remark or trained.choice.how) if trained.choice else "the last checkpoint"


def _outside(run: str, trained: Trained) -> GateError:
    """What a run says that a guard ended."""
    following = trained.best_round + 1
    return GateError(
        f"{trained.stopped}; the best policy so far is that of round {trained.best_round}, {trained.best}",
        hint=f"go on from there: gradus rerun {run} update --from-round {following} --set lr=...; "
        "or repeat the command with another guard",
    )


def _lasting(body: RunSettings) -> Mapping[str, object]:
    """Return what of a run's body may not change, as this version writes it; an earlier version may have written it."""
    recipe = parse_recipe(body["recipe"], "the run's recipe") if "recipe" in body else None
    return {**body, "recipe": lasting(recipe)} if recipe else body


def _answer(run: str, session: Session, recipe: Recipe, trained: Trained, seconds: float) -> TrainAnswer:
    main = trained.figures[recipe.evaluate.main.name]
    suites: dict[str, SuiteFigures] = {
        name: {"before": f.before.evaluation, "after": f.after.evaluation, "best": f.best.evaluation}
        for name, f in trained.figures.items()
    }
    return {
        "run": run,
        "rounds": trained.rounds,
        "updates": sum(o.summary.get("updates", 0) for o in session.outcomes),
        "tokens_generated": sum(o.summary.get("tokens_generated", 0) for o in session.outcomes if not o.reused),
        "tokens_trained": sum(o.summary.get("tokens_trained", 0) for o in session.outcomes if not o.reused),
        "seconds": round(seconds, 2),
        "stages": _stages(session.outcomes),
        "before": main.before.evaluation,
        "after": main.after.evaluation,
        "gain": pass_at_1(main.after) - pass_at_1(main.before),
        "suites": suites,
        "choice": trained.choice.as_dict() if trained.choice else None,
        "remarks": [*trained.remarks, *([trained.choice.remark] if trained.choice and trained.choice.remark else [])],
        "policy": str(trained.policy),
        "best": str(trained.best),
        "out": str(session.store.path(trained.policy)),
    }


def _stages(outcomes: list[Outcome]) -> dict[str, StageCounts]:
    table: dict[str, StageCounts] = {}
    for outcome in outcomes:
        row = table.setdefault(outcome.stage, {"ran": 0, "reused": 0, "seconds": 0.0})
        row["reused" if outcome.reused else "ran"] += 1
        row["seconds"] = round(row["seconds"] + outcome.seconds, 3)
    return table
