"""Tuning: which of the values tried is each method's best, on problems that the comparison then leaves out.

These are problems of their own, or a part of the evaluated ones. All figures are pass@1 of the last checkpoint.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, Floats, Ints
from gradus.data.errors import BadInputError
from gradus.tasks.inspect.comparing.clusters import clusters_of
from gradus.tasks.inspect.comparing.figures import Fields, Tuning
from gradus.tasks.inspect.comparing.trainings import Training, pass_rates, problem_ids, problem_rows
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
    found = [_tuned(name, candidates, rates, judged) for name, candidates in methods.items()]
    stages = {each["output"]: each for t in trainings for each in t.learning}
    figures: Tuning = {
        "on": on,
        "problems": int(judged.sum()),
        "seeds": sorted({t.seed for t in trainings}),
        "methods": found,
        "cost": {
            "trainings": len(trainings),
            "tokens": sum(each["tokens"] for each in stages.values()),
            "seconds": round(sum(each["seconds"] for each in stages.values()), 2),
        },
        "remarks": [*_remarks(found), *edge_remark(found)],
    }
    return Tuned(figures, _evaluated_problems(first, ids).filter(pa.array(part)))


def _tuned(name: str, candidates: Sequence[Candidate], rates: Mapping[str, Floats], judged: Bools) -> Fields:
    """Return the values tried of a method with their pass@1, and those chosen."""
    means = [[rates[t.run][judged].mean() for t in each.trainings] for each in candidates]
    tried: list[Fields] = [
        {
            "values": dict(each.values),
            "runs": list(each.runs),
            "pass_at_1": None if each.failed else float(np.mean(mean)),
            **({"failed": each.failed} if each.failed else {}),
        }
        for each, mean in zip(candidates, means, strict=True)
    ]
    best = best_of([each["pass_at_1"] for each in tried])
    return {"method": name, "tried": tried, "chosen": None if best is None else tried[best]["values"]}


def best_of(rates: Sequence[float | None]) -> int | None:
    """Return the place of the highest rate, the first of equals; None if there is none."""
    known = [rate for rate in rates if rate is not None]
    return rates.index(max(known)) if known else None


def _remarks(methods: Sequence[Fields]) -> list[str]:
    """Remark on values that failed, and on methods that have several best values."""
    rates = {each["method"]: [tried["pass_at_1"] for tried in each["tried"]] for each in methods}
    num_failed = sum(rate is None for found in rates.values() for rate in found)
    tied = [
        method
        for method, found in rates.items()
        if (best := best_of(found)) is not None and found.count(found[best]) > 1
    ]
    return [
        *([f"{num_failed} values are left out, with what they cost: a training of each failed"] if num_failed else []),
        *([f"several values are equally good, and the first of them is taken: {', '.join(tied)}"] if tied else []),
    ]


def edge_remark(methods: Sequence[Fields]) -> list[str]:
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
    found = problem_rows(training.store, training.evaluations[0], ids, IDENTITY)
    unknown = {name: pa.nulls(len(ids), pa.string()) for name in IDENTITY}
    return pa.table({**unknown, "problem_id": ids}) if found is None else found
