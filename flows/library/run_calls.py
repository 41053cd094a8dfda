"""Whole runs, comparisons of them, and their room on the disk; each call has one that says what it would do."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.flows.agreement.asked import AT, AgreeAsked, BisectAsked
from gradus.flows.asked import planned
from gradus.flows.console.answers import Forecast, Freed, Restored
from gradus.flows.laboratory.asked import LabAsked
from gradus.flows.library.calling import call, call_of, run_flow, working
from gradus.flows.library.results import Run
from gradus.flows.library.texts import Component, parse_reward
from gradus.flows.loop.comparing.budget import HOW, Asked
from gradus.flows.loop.reruns import Rerun, plan_rerun
from gradus.flows.parameters import KNOWN_RUN, Sets, Taken, artifacts, named, stages
from gradus.flows.recipe.checking import check_settings
from gradus.flows.recipe.config import read_keep
from gradus.flows.recipe.reading import RECIPES
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import REFERENCE, full_name
from gradus.tasks.runs.history import run_folder

if TYPE_CHECKING:
    from gradus.flows.loop.dry_run import ComparisonForecast
    from gradus.tasks.inspect.agreement.numbers import Bisected
    from gradus.tasks.inspect.agreement.pairs import Agreement
    from gradus.tasks.inspect.comparing.figures import Comparison
    from gradus.tasks.inspect.comparing.planning import Plan
    from gradus.tasks.inspect.laboratory import Laboratory

KEEP = "last=2,best"
Keep = Annotated[str, Taken("checkpoints that keep their weights: the last N, those of every N rounds, the best one")]
Checkpoint = Annotated[str, Taken("checkpoints/DIGEST", complete=artifacts("checkpoints"), argument=True)]


def planned_again(
    run: Annotated[Run | str, KNOWN_RUN],
    stage: Annotated[str, Taken("the stage to run again", complete=stages, argument=True)],
    *,
    round: Annotated[int | None, Taken("in this round only")] = None,
    from_round: Annotated[int, Taken("in this round and all later ones", least=0)] = 0,
    set: Sets = None,  # noqa: A002
) -> Rerun:
    """Return the rerun that is asked for, checked; UsageError if it cannot be."""
    home = Home.from_environment()
    plan = plan_rerun(home.runs, run_folder(home.runs, named(run)).name, stage, set or [], round, from_round)
    if set:
        check_settings(plan.recipe, home.lake)
    return plan


@call_of(planned)
def train(plan: Rerun) -> Run:
    """Run a recipe, or resume a run: the same call continues where it stopped, more `rounds` after the last one.

    `recipe` is a .toml file, a bundled recipe or a run; `method` lays methods over it, by name or .toml file; `set`
    changes settings, `{"update.lr": 1e-4}`.
    """
    return trained(plan)


@call_of(planned)
def dry_run(plan: Rerun) -> Forecast:
    """Return what `train` would compute and reuse, why, and what that costs; nothing is started."""
    return foreseen(plan)


@call_of(planned_again)
def rerun(plan: Rerun) -> Run:
    """Run one stage of a run again, changed or not, in one round, in those from one on, or in all."""
    return trained(plan)


@call_of(planned_again)
def dry_rerun(plan: Rerun) -> Forecast:
    """Return what `rerun` would compute and reuse, why, and what that costs; nothing is started."""
    return foreseen(plan)


def amend_asked(
    run: Annotated[Run | str, KNOWN_RUN],
    rewards: Annotated[
        Sequence[Component], Taken("the rewards that it should have had: NAME[=WEIGHT] each", argument=True)
    ],
    *,
    at: Annotated[float | None, AT] = None,
) -> AgreeAsked:
    """Return the comparison of a run's own rewards with others, summed; UsageError if there can be none."""
    name = run_folder(Home.from_environment().runs, named(run)).name
    parsed = [parse_reward(each).model_dump(mode="json") for each in rewards]
    return AgreeAsked(parsed, rollouts=[name], at=at, together=True)


@call_of(amend_asked)
def amend(asked: AgreeAsked) -> Run:
    """Train a run again from the first round whose update other rewards would change; earlier rounds are reused.

    Its stored rollouts are judged by both (`agree`). The run itself is returned if every update would be the same.
    """
    plan = amended(asked, agreed(asked))
    return trained(plan) if plan else Run(named(asked.rollouts[0]), Home.from_environment())


def amended(asked: AgreeAsked, found: "Agreement") -> Rerun | None:
    """Return the training from the first round on whose update differs; None if there is no such round."""
    (pair,) = found["pairs"]
    (divergence,) = pair["divergences"]
    if divergence["round"] is None:
        return None
    changes: dict[str, object] = {"rewards": [dict(each) for each in asked.rewards]}
    changes |= {} if asked.at is None else {"correct_at": asked.at}
    return planned_again(named(asked.rollouts[0]), "score", from_round=divergence["round"], set=changes)


@call_of(BisectAsked)
def bisect(asked: BisectAsked) -> "Bisected":
    """Find the round from which an auditor disagrees more often with a run's own verdicts, by few of its verdicts.

    `auditor` is a reward, or a .jsonl of labels, to which the rows are added that are to be labelled next: fill in
    `correct` and call again.
    """
    from gradus.flows.agreement.ready import bisect_ready

    bisect_ready(Home.from_environment(), asked)
    return _computed("agreement.flow:bisect", asked)


def foreseen(plan: Rerun) -> Forecast:
    """Return what a training would do."""
    from gradus.flows.loop.dry_run import look_ahead

    return look_ahead(Home.from_environment(), plan)


def trained(plan: Rerun) -> Run:
    """Train as planned."""
    result = run_flow("runs:train_flow", recipe=plan.recipe, run=plan.run, forced=list(plan.forced), like=plan.like)
    return Run(result["run"], Home.from_environment(), result)


@call_of(Asked)
def compare(asked: Asked) -> "Comparison":
    """Judge recipes at equal cost, each pair: better, worse, equivalent within a margin, or undecided.

    With a `budget` (rounds=N, tokens=N, seconds=N) each recipe is trained, or its training reused, with the same seeds;
    without one a single recipe is trained for its own rounds, and `recipes` are otherwise runs that are there. Each is
    judged against its own start too. `method` has methods by name or .toml file: each is laid over each recipe and is a
    row of its own, `a+b` both in one, `none` the recipe itself; without a budget they take the first recipe's rounds.
    `set` has texts `key=value`, and a key that is there several times makes a method of each value. `tune`
    has texts `key=a,b,c`: each method is trained with each of these values and `tune_seeds` seeds of their own, and
    compared at the best of them by pass@1 on the problems of `tune_on`, or on a fifth of the evaluated ones; these
    problems are not judged.
    """
    return compared(asked)


@call_of(LabAsked)
def lab(asked: LabAsked) -> "Laboratory":
    """Compute the gradients of methods on stored rounds of runs, side by side; nothing is sampled.

    `method` has methods by name or .toml file, `every` takes all that change the objective. With then = "compare" the
    better half is trained and compared, and halved again at each doubling of the `budget`.
    """
    from gradus.flows.laboratory.ready import lab_ready

    lab_ready(Home.from_environment(), asked)
    return _computed("laboratory.flow:lab", asked)


@call_of(AgreeAsked)
def agree(asked: AgreeAsked) -> "Agreement":
    """Judge stored rollouts by several rewards and return where their verdicts differ; nothing is sampled.

    `rewards` are texts, `"math"`, `"judges.py:strict"`, or mappings with settings; one alone is compared with the
    rewards that the runs were scored by. `rollouts` are runs or rollouts/DIGEST.
    """
    return agreed(asked)


def agreed(asked: AgreeAsked) -> "Agreement":
    """Do so; UsageError before Prefect is imported if it cannot begin."""
    from gradus.flows.agreement.ready import agree_ready

    asked = replace(asked, rewards=[parse_reward(each).model_dump(exclude_defaults=True) for each in asked.rewards])
    agree_ready(Home.from_environment(), asked)
    return _computed("agreement.flow:agree", asked)


@call_of(Asked)
def plan_comparison(asked: Asked) -> "Plan":
    """Return which difference a comparison can detect, and what it costs; nothing is started."""
    from gradus.flows.loop.comparing.methods import checked
    from gradus.flows.loop.comparing.plan import plan_of

    home = Home.from_environment()
    return plan_of(home, checked(home, asked))


@call_of(Asked)
def dry_compare(asked: Asked) -> "ComparisonForecast":
    """Return what each training of `compare` would compute and reuse, and what that costs; nothing is started."""
    from gradus.flows.loop.comparing.methods import checked
    from gradus.flows.loop.dry_run import look_ahead_comparison

    home = Home.from_environment()
    return look_ahead_comparison(home, checked(home, asked))


def compared(asked: Asked, on_damage: OnDamage = refuse) -> "Comparison":
    """Train the methods, or reuse their trainings, and compare them; or compare runs that are there."""
    from gradus.flows.loop.comparing.compared import compared_runs
    from gradus.flows.loop.comparing.methods import checked
    from gradus.tasks.inspect.comparing.report import Terms

    home = Home.from_environment()
    if trains(asked):
        checked(home, asked)
        return _computed("comparison:compare", asked)
    if asked.tune or asked.tune_on or asked.tune_seeds != 1:
        raise UsageError("--tune trains recipes", hint="give a budget, for example --budget rounds=10")
    if asked.set:
        raise UsageError("--set changes recipes that are trained", hint="give a budget, for example --budget rounds=10")
    if recipe := next(filter(_is_recipe, asked.names), ""):
        raise UsageError(f"{recipe} is a recipe, and there is no budget to train it with", hint=HOW)
    return compared_runs(home, asked.names, Terms(asked.margin / 100, asked.cluster), on_damage)


def trains(asked: Asked) -> bool:
    """Return whether a comparison trains recipes: under a budget, with methods, or a single one."""
    return bool(asked.budget or asked.method or (len(asked.names) == 1 and _is_recipe(asked.names[0])))


def _computed(flow: str, asked: AgreeAsked | BisectAsked | LabAsked | Asked) -> Any:
    """Run the flow of these arguments, to which runs and paths are texts."""
    return run_flow(flow, **{name: _in_text(value) for name, value in vars(asked).items()})


def _in_text(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_in_text(each) for each in value]
    return named(value) if isinstance(value, Run | os.PathLike) else value


def _is_recipe(name: str) -> bool:
    return name.endswith(".toml") or (RECIPES / f"{name}.toml").is_file()


@call
def prune(run: Annotated[Run | str, KNOWN_RUN], *, keep: Keep = KEEP) -> Freed:
    """Remove weights and train states of a run's checkpoints, which can be computed again; return what was freed.

    `keep` names checkpoints that keep their weights: the last N, those of every N rounds, the best one. GradusError if
    a command works on the run.
    """
    from gradus.flows.loop.pruned_runs import prune_run

    return prune_run(Home.from_environment(), named(run), read_keep(keep))


@call
def dry_prune(run: Run | str, *, keep: str = KEEP) -> Freed:
    """Return what `prune` would remove, and what having it back would take; nothing is changed."""
    from gradus.flows.loop.pruned_runs import plan_pruning

    return plan_pruning(Home.from_environment(), named(run), read_keep(keep))


@call
def restore(checkpoint: Checkpoint) -> Restored:
    """Compute a pruned checkpoint again, to the bytes that it had; return the number of updates that were repeated.

    GradusError if its updates do not repeat themselves, or made other bytes.
    """
    from gradus.flows.loop.pruned_runs import restore_checkpoint

    planned = dry_restore(checkpoint)
    if not planned["updates"]:
        return planned
    with working():
        return restore_checkpoint(Home.from_environment(), planned["checkpoint"])


@call
def dry_restore(checkpoint: str) -> Restored:
    """Return what `restore` would take: no update if the checkpoint is whole; nothing is changed."""
    from gradus.flows.loop.pruned_runs import plan_restoring

    home = Home.from_environment()
    if checkpoint.partition("/")[0] != "checkpoints" or not REFERENCE.fullmatch(checkpoint):
        raise UsageError(f"{checkpoint} is no checkpoint", hint="give checkpoints/DIGEST (`gradus show RUN`)")
    return plan_restoring(home, full_name(home.lake, checkpoint))
