"""Tuning: which of the values tried is each method's best, on problems that the comparison then leaves out.

These are problems of their own, or a part of the evaluated ones. All figures are pass@1 of the last checkpoint.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, Ints, positions
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref
from gradus.tasks.inspect.comparing.clusters import clusters_of
from gradus.tasks.inspect.comparing.figures import Tried, TunedMethod, Tuning, TuningCost
from gradus.tasks.inspect.comparing.trainings import Training, pass_rates, problem_ids
from gradus.tasks.inspect.remarks import IDENTITY, recognised

_FRAC, _MIN = 0.2, 50


@dataclass(frozen=True)
class Candidate:
    """A method with values tried, and its trainings, one a seed; none if one failed."""

    values: Mapping[str, str]
    runs: Sequence[str]
    trainings: Sequence[Training]
    failed: str = ""


@dataclass(frozen=True)
class Tuned:
    """The result of tuning, and its problems, which a comparison leaves out."""

    figures: Tuning
    problems: pa.Table

    def has(self, training: Training, ids: pa.Array) -> Bools:
        """Return which evaluated problems (P,) of a training tuned methods, by text or by id."""
        by_text, by_id = recognised(self.problems, _evaluated_problems(training, ids))
        return by_text | by_id


def num_held_out(problems: int) -> int:
    """Return how many evaluated problems are held out for tuning: a fifth, at least 50, at most half of them."""
    return min(max(math.ceil(_FRAC * problems), _MIN), problems // 2)


def held_out(ids: Sequence[str], cluster: Ints | None = None) -> Bools:
    """Return which problems (P,) are held out for tuning, by the digests of their ids; clusters stay whole."""
    units = np.arange(len(ids)) if cluster is None else cluster
    first: dict[int, str] = {}
    for unit, name in sorted(zip(units.tolist(), ids, strict=True)):
        first.setdefault(unit, name)
    sizes = np.bincount(units)
    wanted, most, number = num_held_out(len(ids)), len(ids) // 2, 0
    taken: list[int] = []
    for unit in sorted(first, key=lambda each: hashlib.sha256(f"tuning {first[each]}".encode()).digest()):
        if number < wanted and number + sizes[unit] <= most:
            taken.append(unit)
            number += int(sizes[unit])
    return np.isin(units, taken)


def tune(methods: Mapping[str, Sequence[Candidate]], on: str, cluster: str) -> Tuned:
    """Choose the values of each method with the highest pass@1, the first as typed of equals.

    `on` names the problems; if it is empty, they are a part of the evaluated ones, whose clusters stay whole. Raise
    BadInputError if these are too few.
    """
    trainings = [t for candidates in methods.values() for each in candidates for t in each.trainings]
    first = trainings[0]
    ids = problem_ids(first)
    part = np.ones(len(ids), dtype=bool)
    if not on:
        part = held_out(ids.to_pylist(), clusters_of(first.store, first.evaluations[0], ids, cluster))
    rates = {t.run: pass_rates(t, t.rounds, ids) for t in trainings}
    judged = part & np.logical_not(np.isnan(np.stack(list(rates.values()))).any(axis=0))
    if not judged.any():
        raise BadInputError(
            f"none of {len(ids)} evaluated problems can tune: they are too few, or have no verdict in every evaluation",
            hint="name other problems: --tune-on problems.jsonl",
        )
    found = [
        _chosen(name, [_tried(each, rates, judged) for each in candidates]) for name, candidates in methods.items()
    ]
    figures: Tuning = {
        "on": on,
        "problems": int(judged.sum()),
        "seeds": sorted({t.seed for t in trainings}),
        "methods": found,
        "cost": _cost(trainings),
        "remarks": [*_failures(found), *_ties(found), *edge_remark(found)],
    }
    return Tuned(figures, _evaluated_problems(first, ids).filter(pa.array(part)))


def best_of(rates: Sequence[float | None]) -> int | None:
    """Return the place of the highest rate, the first of equals; None if there is none."""
    known = [(rate, -place) for place, rate in enumerate(rates) if rate is not None]
    return -max(known)[1] if known else None


def _ties(methods: Sequence[TunedMethod]) -> list[str]:
    """Remark on methods that have several best values."""
    rates = {
        each["method"]: [r for tried in each["tried"] if (r := tried["pass_at_1"]) is not None] for each in methods
    }
    tied = [method for method, found in rates.items() if found and found.count(max(found)) > 1]
    return [f"several values are equally good, and the first of them is taken: {', '.join(tied)}"] if tied else []


def edge_remark(methods: Sequence[TunedMethod]) -> list[str]:
    """Remark on chosen numbers that are the smallest or the largest tried: a better one may lie beyond."""
    texts = [
        f"{each['method']} at {key}={value}, the {end} tried"
        for each in methods
        for key, value in (each["chosen"] or {}).items()
        if (end := _end(value, [tried["values"][key] for tried in each["tried"]]))
    ]
    return [f"chosen at the edge of what was tried, beyond which may be better: {'; '.join(texts)}"] if texts else []


def _end(value: str, tried: Sequence[str]) -> str:
    """Return which end of the numbers tried a value is at; empty for one between, or what is not a number."""
    try:
        numbers = sorted({float(each) for each in tried})
    except ValueError:
        return ""
    if len(numbers) < 2:
        return ""
    return {numbers[0]: "smallest", numbers[-1]: "largest"}.get(float(value), "")


def _evaluated_problems(training: Training, ids: pa.Array) -> pa.Table:
    """Return ids and texts of evaluated problems; texts are null if the problems are not in the lake."""
    store = training.store
    named = [Ref.parse(text) for text in store.manifest(training.evaluations[0]).parents.get("problems", [])]
    if not named or store.find(named[0]) is None:
        unknown = pa.nulls(len(ids), pa.string())
        return pa.table({"problem_id": ids, "question": unknown, "messages": pa.nulls(len(ids))})
    table = store.read(named[0], IDENTITY)
    return table.take(pa.array(positions(ids, table.column("problem_id"))))


def _tried(each: Candidate, rates: Mapping[str, Floats], judged: Bools) -> Tried:
    found: Tried = {"values": dict(each.values), "runs": list(each.runs), "pass_at_1": None}
    if each.failed:
        return {**found, "failed": each.failed}
    return {**found, "pass_at_1": float(np.mean([rates[t.run][judged].mean() for t in each.trainings]))}


def _chosen(method: str, tried: list[Tried]) -> TunedMethod:
    best = best_of([each["pass_at_1"] for each in tried])
    return {"method": method, "tried": tried, "chosen": None if best is None else tried[best]["values"]}


def _cost(trainings: Sequence[Training]) -> TuningCost:
    stages = {each["output"]: each for t in trainings for each in t.learning}
    return {
        "trainings": len(trainings),
        "tokens": sum(each["tokens"] for each in stages.values()),
        "seconds": round(sum(each["seconds"] for each in stages.values()), 2),
    }


def _failures(methods: Sequence[TunedMethod]) -> list[str]:
    failed = sum("failed" in each for method in methods for each in method["tried"])
    return [f"{failed} values are left out, with what they cost: a training of each failed"] if failed else []
