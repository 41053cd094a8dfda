"""`--dry-run` of train, rerun and compare: what runs would reuse and compute, why, and what that costs.

Nothing starts, and nothing is written: no server, no worker, no line in the run's journal, no artifact.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypedDict, TypeVar

import psutil

from gradus.components.chosen import chosen_in
from gradus.flows.console.answers import Costs, Forecast, ForeseenCall, Memory, Signal
from gradus.flows.console.output import fields, line, notes, table
from gradus.flows.loop.comparing.methods import Checked
from gradus.flows.loop.expected_signal import SIGNAL_COLUMNS, expected_signal, signal_fields, signal_rows
from gradus.flows.loop.foresight import COMPUTED, Foresight
from gradus.flows.loop.inputs import as_run, name_of_rerun, on_other_data, run_name, start_of
from gradus.flows.loop.reruns import Rerun, other_settings, room_of, stored_recipe
from gradus.flows.loop.round.outcomes import Beginning
from gradus.flows.loop.training import train
from gradus.flows.recipe.checking import warm_up_remark
from gradus.flows.recipe.config import Recipe, changed_files, same_run
from gradus.flows.recipe.course.by_round import stage_config
from gradus.flows.recipe.course.phases import following_rounds, settled
from gradus.flows.recipe.samplings import changing_rounds, samplings
from gradus.tasks.artifacts.ahead import footprint, overlay
from gradus.tasks.config.settings import Home
from gradus.tasks.formats import count, duration, size
from gradus.tasks.runs.history import precedents
from gradus.tasks.runtime.calls import label

N = TypeVar("N", int, float)
FIRST_ROUND = "these are the first rounds alone"
_NOTHING_STARTED = "nothing was started; time and tokens are those of the nearest stages computed before"


class ForeseenTraining(TypedDict):
    """Forecast of one training of a comparison; None for what was never measured."""

    method: str
    seed: int
    run: str
    reused: int
    computed: int
    tokens: int | None
    seconds: float | None
    signal: Signal | None
    """Forecast of its first round that is to be sampled."""


class ComparisonForecast(TypedDict):
    """Forecast of a comparison."""

    trainings: list[ForeseenTraining]
    remarks: list[str]


def look_ahead(home: Home, plan: Rerun) -> Forecast:
    """Return the forecast of a training, as `--json` prints it; UsageError if its name is that of another run."""
    recipe = as_run(plan.recipe)
    named = name_of_rerun(home.runs, plan.run, recipe) if plan.run and plan.forced else plan.run
    folder = home.runs / (named or run_name(recipe))
    goes_on = (folder / "run.json").is_file()
    if goes_on and not same_run(stored := stored_recipe(home.runs, folder.name), recipe):
        bodies = (each.model_dump(mode="json") for each in (stored, recipe))
        raise other_settings(folder, changed_files(*bodies))
    with overlay(home.lake) as store:
        session = Foresight(store, recipe.seed, precedents(home.runs, recipe.name), frozenset(plan.forced))
        session.remarks += [*_not_run(recipe), *warm_up_remark(recipe, recipe.rounds)]
        if plan.run is None and (changed := on_other_data(home.runs, recipe)):
            session.remarks.append(changed)
        start = start_of(session, recipe)
        room = room_of(store, home.runs / plan.like) if plan.like else None
        trained = train(session, recipe, start, room=room)
        memory = _memory(session, recipe, start)
        signal = expected_signal(session)
    total, stages = _costs(session.calls), dict.fromkeys(call["stage"] for call in session.calls)
    return {
        "run": folder.name,
        "goes_on": goes_on,
        "stages": {stage: _costs([call for call in session.calls if call["stage"] == stage]) for stage in stages},
        "calls": session.calls,
        "rollouts": total["rollouts"],
        "tokens": total["tokens"],
        "seconds": total["seconds"],
        "memory": memory,
        "signal": signal,
        "remarks": [*session.remarks, *([f"the run ends: {trained.stopped}"] if trained.stopped else [])],
    }


def _not_run(recipe: Recipe) -> list[str]:
    """Return a sentence about the user's own code, schedules apart, and one about settings that follow metrics."""
    users = [chosen.label for chosen in chosen_in(recipe) if chosen.is_users and chosen.kind != "schedule"]
    labels = ", ".join(dict.fromkeys(users))
    found = [f"{labels}: read, not run; loading and results are not checked"] if labels else []
    if following := ", ".join(following_rounds(recipe)):
        found.append(f"{following} depend on figures of rounds, which are unknown until these are computed")
    return found


def render(result: Forecast) -> None:
    """The answer for people: a table of stages, each reason once, the sums, the memory."""
    rows = [
        (name, each["reused"], each["computed"], count(each["rollouts"]), count(each["tokens"]),
         _time(each["seconds"], each["computed"]))
        for name, each in result["stages"].items()
    ]  # fmt: skip
    table("", ("stage", "reused", "computed", "rollouts", "tokens", "time"), rows)
    for text in _reasons(result["calls"]):
        line(text)
    notes(result["remarks"])
    memory = result["memory"]
    unknown = sum(call["what"] == COMPUTED and call["seconds"] is None for call in result["calls"])
    some = unknown and result["seconds"] is not None
    unmeasured = f" and {unknown} stages not measured yet" if some else ""
    fields(
        {
            "run": f"{result['run']} ({'resumes' if result['goes_on'] else 'new'})",
            "to sample": f"{count(result['rollouts'])} rollouts, {count(result['tokens'])} tokens",
            "time": _time(result["seconds"], len(result["calls"])) + unmeasured,
            "memory": f"rollout {size(memory['rollout'])}, update {size(memory['update'])} at least, of "
            f"{size(memory['machine'])}",
            **signal_fields(result["signal"]),
        }
    )
    notes(filter(None, [memory["warning"]]))
    line(_NOTHING_STARTED)


def _memory(session: Foresight, recipe: Recipe, start: Beginning) -> Memory:
    """Return the bytes that the stages of a run need at least, those of the machine, and a sentence if it has less."""
    updates = [
        stage_config(each, "update", index, each.update)
        for each in settled(recipe)
        for index in changing_rounds(each, "update")
    ]
    found = [
        footprint(session.store, start.policy, each.sample, each.rollout, update, separate_sampler=bool(recipe.overlap))
        for each in samplings(recipe)
        for update in updates or [recipe.update]
    ]
    store, update = session.store, recipe.update
    roles = [
        footprint(store, start.roles.get(name, start.policy), role.sample, role.rollout, update, separate_sampler=False)
        for name, role in recipe.sampled_roles.items()
        if not role.rollout.is_text
    ]
    sampled, updated = max(rollout for rollout, _ in (*found, *roles)), max(update for _, update in found)
    stage, needed = ("update", updated) if updated > sampled else ("rollout", sampled)
    machine, warning = psutil.virtual_memory().total, ""
    if needed > machine:
        warning = f"{stage} needs at least {size(needed)} of memory, and this machine has {size(machine)}"
    return {"rollout": sampled, "update": updated, "machine": machine, "warning": warning}


def _costs(calls: Sequence[ForeseenCall]) -> Costs:
    computed = [call for call in calls if call["what"] == COMPUTED]
    return {
        "reused": len(calls) - len(computed),
        "computed": len(computed),
        "rollouts": _sum(call["rollouts"] for call in computed),
        "tokens": _sum(call["tokens"] for call in computed),
        "seconds": _sum(call["seconds"] for call in computed),
    }


def _reasons(calls: Sequence[ForeseenCall]) -> list[str]:
    """Return each reason with its calls; stages computed only because of others are counted in one line."""
    follows = [call for call in calls if call["why"].startswith("its ")]
    causes: dict[str, list[str]] = {}
    for call in calls:
        if call["what"] == COMPUTED and call not in follows:
            causes.setdefault(call["why"], []).append(label(call["stage"], call["round"], call["purpose"]))
    lines = [f"{_listed(labels)}: {why}" for why, labels in causes.items()]
    if follows:
        stages = Counter(call["stage"] for call in follows)
        counted = ", ".join(f"{count} {stage}" for stage, count in stages.items())
        lines.append(f"because of these: {counted}; results that come out the same as before are reused")
    return lines


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 4 else f"{labels[0]}, {labels[1]} … {labels[-1]} ({len(labels)})"


def _sum(values: Iterable[N | None]) -> N | None:
    """Return the sum of the known numbers; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _time(seconds: float | None, num_computed: int) -> str:
    if seconds is None:
        return "not measured yet" if num_computed else "-"
    return duration(seconds, 0)


def look_ahead_comparison(home: Home, asked: Checked) -> ComparisonForecast:
    """Return the forecast of a comparison, or of its tuning; of first rounds alone unless the budget counts rounds."""
    tuning, budget = asked.tuning, asked.budget
    first = tuning or asked
    trainings: list[ForeseenTraining] = []
    for seed in first.seeds:
        for method in first.methods:
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
                    "signal": found["signal"],
                }
            )
    remarks = ["each training is forecast alone: stages that several share are computed once, and reused by the others"]
    if budget.unit != "rounds":
        remarks.append(
            f"{FIRST_ROUND}: the budget of {budget} is checked after each round, so the number of rounds depends "
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
    return f" with at most {count(sum(filter(None, tokens)))} tokens and {count(sum(filter(None, seconds)))} s"


def render_comparison_ahead(found: ComparisonForecast) -> None:
    """A line for each training."""
    rows = [
        (each["method"], each["seed"], each["run"], each["reused"], each["computed"], count(each["tokens"]),
         count(each["seconds"]))
        for each in found["trainings"]
    ]  # fmt: skip
    table("", ("method", "seed", "run", "reused", "computed", "tokens", "seconds"), rows)
    if signals := signal_rows([(each["method"], each["signal"]) for each in found["trainings"]]):
        table("first round to be sampled, means over the seeds", SIGNAL_COLUMNS, signals)
    notes(found["remarks"])
    line(_NOTHING_STARTED)
