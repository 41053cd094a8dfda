"""The flow of a training, and its answer at the end."""

import shlex
import time

from gradus.data.errors import GateError
from gradus.flows.console.answers import StageCounts, TrainAnswer
from gradus.flows.console.output import aside
from gradus.flows.loop.comparing.budget import Budget
from gradus.flows.loop.inputs import as_run, name_of_rerun, on_other_data, run_name, start_of
from gradus.flows.loop.measuring import spent
from gradus.flows.loop.reruns import room_of
from gradus.flows.loop.round.outcomes import Beginning, Trained
from gradus.flows.loop.training import train
from gradus.flows.recipe.checking import warm_up_remark
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import stage_config
from gradus.flows.recipe.course.phases import of_each_phase
from gradus.flows.recipe.reading import refuse_unjudged
from gradus.flows.session import RunSpec, open_session
from gradus.flows.verbs import gradus_flow
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.remarks import left_out_texts, remarks_of
from gradus.tasks.runs.history import ComputedSeconds, read_story, sampled_tokens
from gradus.tasks.runtime.calls import Outcome
from gradus.tasks.runtime.pruning import computed_by
from gradus.tasks.runtime.stage_adapter import Session
from gradus.tasks.stages.score.trial import try_rewards
from gradus.tasks.tracking.names import flat_params


@gradus_flow("train")
def train_flow(
    recipe: Recipe,
    run: str | None = None,
    forced: list[tuple[str, int, str]] | None = None,
    budget: Budget | None = None,
    like: str = "",
) -> TrainAnswer:
    """Rounds of curate, rollout, score and update as a recipe says, or until a budget is reached.

    The same recipe continues where it stopped; with more rounds, from the last one. What a budget left out of the waves
    of the run `like`, which this one repeats, is left out again.
    """
    started = time.perf_counter()
    refuse_unjudged(recipe)
    recipe = as_run(recipe)
    if run and forced:
        named = name_of_rerun(Home.from_environment().runs, run, recipe)
        if named != run:
            aside(f"a file that {run} names has changed since: this is another run, {named}")
            run = named
    elif run is None and (changed := on_other_data(Home.from_environment().runs, recipe)):
        aside(f"note: {changed}")
    body = recipe.model_dump(mode="json")
    spec = RunSpec(
        name=run or run_name(recipe),
        verb="train",
        seed=recipe.seed,
        body={"recipe": body},
        changed=changed_settings(recipe),
        rounds=0 if budget else recipe.rounds,
        forced=frozenset((stage, index, purpose) for stage, index, purpose in forced or []),
    )
    with open_session(spec, separate_sampler=bool(recipe.overlap)) as session:
        trained = _within(session, recipe, budget, like)
        how = _how(trained)
        session.journal.model_alias("policy", "champion", str(trained.best), note=how)
        session.journal.model_alias("policy", "newest", str(trained.policy))
        if trained.stopped:
            raise _outside(spec.name, trained)
        return _answer(spec.name, session, recipe, trained, time.perf_counter() - started)


def changed_settings(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Return each setting of a recipe that is not the default, with the default (empty: there is none) and its value.

    Named as the tracker names parameters. The settings of a component that is not the default one have no default.
    """
    here = flat_params(recipe.model_dump(mode="json"))
    default = flat_params(Recipe(name=recipe.name).model_dump(mode="json"))
    return {key: (default.get(key, ""), value) for key, value in here.items() if default.get(key) != value}


def _within(session: Session, recipe: Recipe, budget: Budget | None, like: str) -> Trained:
    """Train for the rounds of the recipe, with waves as large as those of the run that it repeats, or for a budget."""
    start, runs = _started(session, recipe), session.journal.folder.parent
    if budget is None:
        return train(session, recipe, start, room=room_of(session.store, runs / like) if like else None)
    computed = ComputedSeconds(runs)

    def ends(index: int) -> bool:
        return budget.is_reached(index, *spent(session.outcomes, computed))

    def room(_round: int, _purpose: str, tokens: float) -> int | None:
        left = budget.left(spent(session.outcomes, computed)[0])
        return None if left is None else int(left // tokens)

    return train(session, recipe, start, ends, room)


def _started(session: Session, recipe: Recipe) -> Beginning:
    """Return what training starts from; a run that has not scored yet tries its rewards first."""
    start, folder = start_of(session, recipe), session.journal.folder
    if all(row["stage"] != "score" for row in read_story(folder).rows.values()):
        suites = [(suite.score, start.suites[suite.name]) for suite in recipe.evaluate.suites if suite.score]
        phases = zip(of_each_phase(recipe), start.phases or (start.problems,), strict=True)
        trained = [(each, each.score, problems) for each, problems in phases]
        for each, score, problems in (*trained, *((recipe, *suite) for suite in suites)):
            rewards = stage_config(each, "score", 0, score).rewards
            try_rewards(session.store, rewards, problems, folder / "logs")
    return start


def _how(trained: Trained) -> str:
    """Return a line for the registry: the selection of the best policy."""
    if trained.stopped:
        return f"the best policy before {trained.stopped}"
    return (trained.choice.remark or trained.choice.how) if trained.choice else "the last checkpoint"


def _outside(run: str, trained: Trained) -> GateError:
    """Return the message of a run that a guard, or rounds without signal, ended."""
    following = trained.best_round + 1
    message = f"{trained.stopped}; the best policy so far is that of round {trained.best_round}, {trained.best}"
    if trained.rounds in trained.skipped:
        hint = "curate problems that are neither always nor never solved, or raise curate.sample.n"
        return GateError(
            message, hint=f"{hint}; run the same command with more max_skipped_updates or --rounds to resume"
        )
    return GateError(
        message,
        hint=f"continue from there: gradus rerun {shlex.quote(run)} update --from-round {following} --set lr=...; "
        "or repeat the command with another guard",
    )


def _answer(run: str, session: Session, recipe: Recipe, trained: Trained, seconds: float) -> TrainAnswer:
    main = trained.figures[recipe.evaluate.main.name]
    own = computed_by(session.journal.folder)  # by whichever of its commands
    computed = {o.ref: o for o in session.outcomes if o.ref in own}.values()
    answer: TrainAnswer = {
        "run": run,
        "rounds": trained.rounds,
        "updates": sum(o.summary.get("updates", 0) for o in session.outcomes),
        "skipped_updates": len(trained.skipped),
        "tokens_generated": sum(sampled_tokens(o.stage, o.summary) for o in computed),
        "tokens_trained": sum(o.summary.get("tokens_trained", 0) for o in computed),
        "seconds": round(seconds, 2),
        "stages": _stages(session.outcomes),
        "before": main["before"],
        "after": main["after"],
        "gain": main["after"]["pass_at"]["1"]["value"] - main["before"]["pass_at"]["1"]["value"],
        "suites": trained.figures,
        "choice": trained.choice.as_dict() if trained.choice else None,
        "remarks": [
            *dict.fromkeys(text for o in session.outcomes for text in remarks_of(o.stage, o.purpose, o.summary)),
            *left_out_texts([o.summary for o in session.outcomes if o.stage == "rollout"]),
            *warm_up_remark(recipe, trained.rounds - len(trained.skipped)),
            *trained.remarks,
            *([trained.choice.remark] if trained.choice and trained.choice.remark else []),
        ],
        "policy": str(trained.policy),
        "best": str(trained.best),
        "out": str(session.store.path(trained.policy)),
    }
    if trained.roles:
        answer["roles"] = {name: str(ref) for name, ref in trained.roles.items()}
    return answer


def _stages(outcomes: list[Outcome]) -> dict[str, StageCounts]:
    table: dict[str, StageCounts] = {}
    for outcome in outcomes:
        row = table.setdefault(outcome.stage, {"ran": 0, "reused": 0, "seconds": 0.0})
        row["reused" if outcome.reused else "ran"] += 1
        row["seconds"] = round(row["seconds"] + outcome.seconds, 3)
    return table
