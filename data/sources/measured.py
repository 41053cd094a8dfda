"""A user's measurements of problems as rows of the table `difficulty`.

    {"problem_id": "a", "n": 8, "k": 3}                  counts
    {"problem_id": "a", "rewards": [0, 1, 1, 0]}         a 0/1 reward for each rollout: n = 4, k = 2
    {"problem_id": "a", "rewards": [0.2, 0.9]}           graded rewards: their number, mean and variance, no verdict
    {"problem_id": "a", "pass_rate": 0.25}               of an unknown number of rollouts: n = 0
    {"problem_id": "a", "history": [0.1, 0.4]}           accuracies, oldest first; the last is the pass rate

A .json file may hold all problems as one object, ID: number | list | row. Its lists are accuracy histories if all their
numbers lie in [0, 1] and one is neither 0 nor 1, and rewards otherwise; its numbers are pass rates.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TypeGuard, cast

import numpy as np

from gradus.data.errors import BadInputError
from gradus.data.records import Row
from gradus.data.sources.columns import shown
from gradus.data.sources.reading import Located


def measured(rows: Iterator[Located], *, may_be_one: bool) -> Iterator[Located]:
    """Yield rows with n and k, and what else follows from what they have.

    One row without a problem_id is an object of all problems if it `may_be_one`. Raises BadInputError for what is no
    measurement.
    """
    first, second = next(rows, None), next(rows, None)
    if may_be_one and first is not None and second is None and "problem_id" not in first.row:
        yield from map(_counted, _by_problem(first))
        return
    yield from map(_counted, chain((each for each in (first, second) if each is not None), rows))


def _by_problem(whole: Located) -> Iterator[Located]:
    """Yield a row for each key of an object."""
    lists = [value for value in whole.row.values() if isinstance(value, list)]
    numbers = [each for value in lists for each in cast("list[object]", value) if _is_number(each)]
    name = "history" if any(0 < each < 1 for each in numbers) and all(0 <= each <= 1 for each in numbers) else "rewards"
    for problem_id, value in whole.row.items():
        place = f"{whole.place}, {problem_id}"
        if isinstance(value, dict):
            yield Located(place, {**cast("Row", value), "problem_id": problem_id})
        elif isinstance(value, list):
            yield Located(place, {"problem_id": problem_id, name: value})
        elif _is_number(value):
            yield Located(place, {"problem_id": problem_id, "pass_rate": value})
        else:
            raise BadInputError(
                f"{place}: {shown(value)} is no measurement", hint="write a pass rate, a list of rewards, or a row"
            )


def _counted(located: Located) -> Located:
    """Return a row with n and k."""
    row = located.row
    if row.get("n") is not None or row.get("k") is not None:
        return located
    if row.get("rewards") is not None:
        return Located(located.place, {**{k: v for k, v in row.items() if k != "rewards"}, **_rewarded(located)})
    history = row.get("history")
    rate = row.get("pass_rate")
    if rate is None and isinstance(history, list) and history:
        rate = cast("list[object]", history)[-1]
    return located if rate is None else Located(located.place, {**row, "n": 0, "k": 0, "pass_rate": rate})


def _rewarded(located: Located) -> Mapping[str, object]:
    """Return counts, mean and population variance of a row's rewards."""
    given = located.row["rewards"]
    if not isinstance(given, list) or not all(map(_is_number, given := cast("list[object]", given))):
        raise BadInputError(
            f"{located.place}: rewards is {shown(given)}", hint="write a list of finite numbers, one a rollout"
        )
    rewards = np.array(given, np.float64)
    judged = bool(np.isin(rewards, (0, 1)).all())
    of_all = {"reward_mean": float(rewards.mean()), "reward_variance": float(rewards.var())} if len(rewards) else {}
    n, right = (len(rewards), int(rewards.sum())) if judged else (0, 0)
    return {"n": n, "k": right, "reward_n": len(rewards), **of_all}


def _is_number(value: object) -> TypeGuard[float]:
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) < 2**53
