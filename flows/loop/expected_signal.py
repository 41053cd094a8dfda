"""Forecast of a training's next round: the groups without variance, and the tokens of one that has it."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.components.chosen import chosen_in
from gradus.data.arrays import Ints, ints, one_array, positions
from gradus.data.curation.candidates import candidates
from gradus.data.curation.plan import given_rows
from gradus.data.curation.surface.forecast import fitted_prior, no_variance, some_right
from gradus.data.errors import GradusError
from gradus.data.lake.store import Ref
from gradus.data.seeds import derive_seed
from gradus.flows.console.answers import Signal
from gradus.flows.loop.foresight import COMPUTED, Foresight
from gradus.tasks.artifacts.ahead import KnownRates, rates_in, rates_of, tokens_of
from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.formats import count, share, span
from gradus.tasks.runtime.calls import Call
from gradus.tasks.stages.curate import choose

SAMPLES = 8
"""Of pass@8, by which hints are judged: below about one problem a round they help (docs/benchmarks.md, The ladder)."""


@dataclass(frozen=True)
class _Planned:
    """Rows of a round's first plan, numbers of problems and completions (R,) each, or what stands for them."""

    problem: Ints
    size: Ints
    groups: int
    """Groups of the round: R if these are the problems that it draws."""
    drawn: bool


def expected_signal(session: Foresight) -> Signal | None:
    """Return the forecast of the first round that is to be sampled; None if there is none, or its problems are unknown.

    Means are over the problems that the round draws, if its plan can be computed. Otherwise filters, ranking and
    sampler are applied to the pass rates in the lake; if they read anything else, means are over all problems.
    """
    sampled = ("rollout", "train", COMPUTED)
    rounds = [call["round"] for call in session.calls if (call["stage"], call["purpose"], call["what"]) == sampled]
    if not rounds:
        return None
    index = min(rounds)
    curate, rollout = session.asked["curate", index, "train"], session.asked["rollout", index, "train"]
    problems, config = curate.inputs["problems"][0], curate.config
    assert isinstance(config, CurateConfig)
    if not session.there(problems):
        return None
    ids = one_array(session.store.read(problems, ["problem_id"]).column("problem_id"))
    known = _known(session, curate, rollout.inputs["policy"][0], config.sample.temperature, ids)
    plan = rollout.inputs["plan"][0]
    if session.there(plan):
        planned = _drawn(session.store.read(plan, ["problem_id", "n"]), ids)
    elif given := curate.inputs.get("plan"):
        planned = _drawn(given_rows(session.store.read(given[0], ["problem_id", "n"]), index, config.draw), ids)
    else:
        planned = _likely(session.store.read(problems), known, config, derive_seed(session.seed, "curate", index))
    return _signal(index, known, planned, _tokens(session, known, index))


def _known(session: Foresight, curate: Call, policy: Ref, temperature: float, ids: pa.Array) -> KnownRates:
    """Return the pass rates in the table that the round reads, or, before that is there, in those of the policy."""
    measured = [ref for ref in curate.inputs.get("difficulty", ()) if session.there(ref)]
    if measured:
        return rates_in(session.store, measured[0], ids)
    nothing = np.zeros(len(ids), dtype=np.int64)
    known = session.there(policy)
    return rates_of(session.store, policy, temperature, ids) if known else KnownRates(nothing, nothing, ())


def _drawn(plan: pa.Table, ids: pa.Array) -> _Planned:
    return _Planned(positions(plan.column("problem_id"), ids), ints(plan.column("n")), plan.num_rows, drawn=True)


def _likely(problems: pa.Table, known: KnownRates, config: CurateConfig, seed: int) -> _Planned:
    """Return what the round would draw if the pass rates in the lake were its own, or all problems."""
    reads_more = config.tracked or config.counts_tokens or any(each.is_users for each in chosen_in(config))
    taken, drawn = np.arange(problems.num_rows), False
    if not reads_more and known.n.any():
        difficulty = pa.table({"problem_id": problems.column("problem_id"), "n": known.n, "k": known.k})
        with contextlib.suppress(GradusError):  # a column that no problem has: the round itself says so
            taken, *_ = choose(candidates(problems, difficulty), config, seed)
            drawn = True
    num = len(taken) if drawn else min(config.draw or len(taken), config.top or len(taken), len(taken))
    return _Planned(taken, np.full(len(taken), config.sample.n), num, drawn)


def _tokens(session: Foresight, known: KnownRates, index: int) -> float | None:
    """Return the mean tokens of a rollout that the pass rates come from, else that of the nearest stage computed."""
    if (found := tokens_of(session.store, known.tables)) is not None:
        return found
    key = ("rollout", index, "train")
    call = next(each for each in session.calls if (each["stage"], each["round"], each["purpose"]) == key)
    return call["tokens"] / call["rollouts"] if call["tokens"] and call["rollouts"] else None


def _signal(index: int, known: KnownRates, planned: _Planned, tokens: float | None) -> Signal:
    at, sizes = planned.problem, np.unique(planned.size)
    found: Signal = {
        "round": index,
        "problems": len(at),
        "drawn": planned.drawn,
        "groups": planned.groups,
        "group": int(sizes[0]) if len(sizes) == 1 else None,
        "measured": int((known.n[at] > 0).sum()),
        "prior": None,
        "no_variance_frac": None,
        "solved_of_8": None,
        "rollout_tokens": tokens,
        "signal_group_tokens": None,
    }
    if not known.n.any() or not len(at):
        return found
    prior = fitted_prior(known.n, known.k)
    dead = float(no_variance(known.n[at], known.k[at], planned.size, prior).mean())
    found["prior"] = [prior.a, prior.b]
    found["no_variance_frac"] = dead
    found["solved_of_8"] = float(some_right(known.n[at], known.k[at], SAMPLES, prior).mean()) * planned.groups
    if tokens is not None and dead < 1:
        found["signal_group_tokens"] = tokens * float(planned.size.mean()) / (1 - dead)
    return found


SIGNAL_COLUMNS = (
    *("method", "round", "problems measured", "groups all right or all wrong", "tokens of another group"),
    f"problems right in {SAMPLES}",
)


def signal_rows(trainings: Sequence[tuple[str, Signal | None]]) -> list[tuple[str, ...]]:
    """Return a line of SIGNAL_COLUMNS for each method of trainings, means over those of them that have a forecast."""
    found: dict[str, list[Signal]] = {}
    for method, signal in trainings:
        if signal is not None:
            found.setdefault(method, []).append(signal)
    rows: list[tuple[str, ...]] = []
    for method, signals in found.items():
        names = ("no_variance_frac", "signal_group_tokens", "solved_of_8")
        dead, tokens, solved = (_mean([each[name] for each in signals]) for name in names)
        measured = share(_mean([each["measured"] / max(each["problems"], 1) for each in signals]), 0)
        known = "unknown" if dead is None else share(dead, 0)
        right = "-" if solved is None else f"{solved:.1f}"
        rows.append((method, span([each["round"] for each in signals]), measured, known, count(tokens), right))
    return rows


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def signal_fields(found: Signal | None) -> dict[str, str]:
    """Return the lines of the answer for people."""
    if found is None:
        return {}
    dead, tokens, solved = found["no_variance_frac"], found["signal_group_tokens"], found["solved_of_8"]
    index = found["round"]
    if dead is None or solved is None:
        return {"signal": f"unknown: the lake has no pass rate of round {index}'s problems with its policy"}
    size = f"groups of {found['group']}" if found["group"] else "groups"
    over = f"the {found['problems']} problems drawn" if found["drawn"] else f"all {found['problems']} problems"
    cost = "unknown tokens" if tokens is None else f"{count(tokens)} tokens"
    return {
        "signal": f"round {index}: {share(dead, 0)} of {size} expected all right or all wrong (mean over {over}, "
        f"{found['measured']} of them measured), {cost} for each other group",
        "hints": f"{solved:.1f} problems of the round expected right at least once in {SAMPLES} (draw x "
        f"pass@{SAMPLES}); hints help below about 1",
    }
