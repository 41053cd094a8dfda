"""The batch of an update: groups, what is left out and why, and what shapes may decide; by hand."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.rows import ColumnError
from gradus.data.curation.batch import REPLACED, UNJOINED, UNJUDGED, Shape, ShapeError, first_batch, judged, shaped

ROWS = [
    # problem, group, level, origin, reward, correct
    ("a", "a@r1h0", 0, None, 0.0, False),
    ("a", "a@r1h0", 0, None, 0.0, False),
    ("a", "a@r1h1", 1, None, 1.0, True),
    ("b", "b@r1h0", 0, None, None, None),
    ("b", "b@r1h0", 0, "own", 1.0, True),
    ("a", None, 0, "expert", 1.0, True),
    ("c", None, 0, "expert", 1.0, True),
]


def rows(given: list[tuple[Any, ...]] = ROWS, **more: Any) -> pa.Table:
    names = ("problem_id", "group_id", "hint_level", "origin", "reward", "correct")
    types = (pa.string(), pa.string(), pa.int32(), pa.string(), pa.float64(), pa.bool_())
    columns = {
        name: pa.array([row[i] for row in given], kind) for i, (name, kind) in enumerate(zip(names, types, strict=True))
    }
    return pa.table({"rollout_id": [f"r{i}" for i in range(len(given))], **columns, **more})


def by(name: str, table: pa.Table) -> list[Any]:
    return table.column(name).to_pylist()


def test_the_first_batch_by_hand() -> None:
    table = judged(first_batch(rows()))
    assert by("group_id", table) == ["a@r1h0", "a@r1h0", "a@r1h1", "b@r1h0", "b@r1h0", "a@r1h1", "c"]
    assert by("taken", table) == [False, False, True, False, True, True, False]
    assert by("reason", table) == [REPLACED, REPLACED, None, UNJUDGED, None, None, UNJOINED]
    assert table.column_names == ["rollout_id", "problem_id", "group_id", "reward", "taken", "reason"]
    twice = judged(first_batch(rows([*ROWS, ("d", None, 0, "expert", None, None)])))
    assert by("reason", twice)[-1] == UNJOINED  # the first reason stays
    kept = judged(first_batch(rows(), drop_replaced_groups=False))
    assert by("taken", kept) == [True, True, True, False, True, True, False]


def test_a_given_row_joins_no_group_that_is_left_out_or_that_nobody_judged() -> None:
    own = [("a", "h0", 0, None, 0.0, False), ("a", "h1", 1, None, None, None), ("b", "b0", 0, None, 1.0, True)]
    table = judged(first_batch(rows([*own, ("a", None, 0, "expert", 1.0, True)])))
    assert by("reason", table) == [REPLACED, UNJUDGED, None, UNJOINED]
    unjudged = [(*row[:4], None, None) for row in own]  # rewards that a shape is still to make
    joined = judged(first_batch(rows([*unjudged, ("a", None, 0, "expert", 1.0, True)])))
    assert by("group_id", joined)[-1] == "h1"


def test_shapes_set_columns_one_after_the_other_and_other_names_are_metrics() -> None:
    # The six rows that can be joined: 0 0 1 - 1 1.
    def halved(seen: Any) -> dict[str, Any]:
        return {"reward": seen["reward"] / 2, "size": np.array([1.0, np.nan, 3.0, 5.0, 7.0, np.inf])}

    def chosen(seen: Any) -> dict[str, Any]:
        high = seen["reward"] == 0.5
        return {
            "taken": high | np.isnan(seen["reward"]),
            "reason": np.where(high, "", "too low"),
            "weight": 2 * seen["reward"],
            "term": np.where(high, "high", "low"),
            "group": np.array([0, 0, 0, 9, 9, 9]),
        }

    batch, metrics = shaped(
        first_batch(rows(), drop_replaced_groups=False),
        [Shape("halved", halved), Shape("chosen", chosen, ("reward",))],
    )
    table = judged(batch)
    assert by("reward", table) == [0.0, 0.0, 0.5, None, 0.5, 0.5, 1.0]
    assert by("weight", table) == [0.0, 0.0, 1.0, None, 1.0, 1.0, None]
    assert by("term", table) == ["low", "low", "high", "low", "high", "high", None]
    assert by("reason", table) == ["too low", "too low", None, UNJUDGED, None, None, UNJOINED]
    assert by("group_id", table) == ["a@r1h0", "a@r1h0", "a@r1h0", *["chosen:9"] * 3, "c"]
    assert metrics == {"batch/halved_size": 4.0}


def test_no_shape_sees_a_row_that_is_left_out() -> None:
    first = first_batch(rows())  # rows 2, 3, 4 and 5 are left
    seen: list[list[str]] = []

    def odd(view: Any) -> dict[str, Any]:
        seen.append([view.table.column("rollout_id")[row].as_py() for row in range(view.num_rows)])
        return {
            "taken": np.arange(view.num_rows) % 2 == 0,
            "reason": "not this round",
            "reward": np.full(view.num_rows, 9),
        }

    out, _ = shaped(
        first, [Shape("odd", odd), Shape("odd", odd), Shape("bare", lambda view: {"taken": np.array([False])})]
    )
    assert seen == [["r2", "r3", "r4", "r5"], ["r2", "r4"]]
    table = judged(out)
    reasons = [REPLACED, REPLACED, "left out by the shape bare", "not this round", "not this round", "not this round"]
    assert by("reason", table) == [*reasons, UNJOINED]
    assert by("reward", table) == [0.0, 0.0, 9.0, 9.0, 9.0, 9.0, 1.0]
    assert not any(by("taken", table))


def test_groups_that_a_shape_makes_have_its_name_and_a_reward_may_be_made_or_taken_away() -> None:
    def paired(seen: Any) -> dict[str, Any]:
        return {"group": np.array([8, 1, 8, 7]), "reward": np.array([1, 1, np.nan, 2])}

    table = judged(shaped(first_batch(rows()), [Shape("paired", paired)])[0])
    assert by("group_id", table)[2:6] == ["paired:8", "a@r1h1", "paired:8", "paired:7"]
    assert by("reward", table)[2:6] == [1, 1, None, 2]
    assert by("reason", table)[2:6] == [None, None, UNJUDGED, None]


def test_a_shape_that_draws_is_handed_its_generator() -> None:
    rng = np.random.default_rng(3)
    found, _ = shaped(first_batch(rows()), [Shape("drawn", lambda seen, rng: {"reward": rng.random(4)}, rng=rng)])
    assert by("reward", judged(found))[2:6] == pytest.approx(np.random.default_rng(3).random(4))


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ({"taken": np.ones(4)}, "its 'taken' is not true or false for each of 4 rows"),
        ({"group": np.ones(4)}, "its 'group' is not a whole number for each of 4 rows"),
        ({"group": -np.ones(4, int)}, "its 'group' has the number -1; numbers begin at 0"),
        ({"reward": np.ones(3)}, "its 'reward' is not a number for each of 4 rows"),
        ({"reward": np.full(4, np.inf)}, "its 'reward' of rollout r2 is inf"),
        ({"weight": np.full(4, -np.inf)}, "its 'weight' of rollout r2 is -inf"),
        ({"term": [1] * 4}, "its 'term' is not a text for each of 4 rows"),
        ({"credit": [[1.0]] * 3}, "its 'credit' is not a list of finite numbers for each of 4 rows"),
        ({"credit": [[np.nan], *[None] * 3]}, "its 'credit' is not a list of finite numbers for each of 4 rows"),
        ({"credit": np.ones(4)}, "its 'credit' is not a list of finite numbers for each of 4 rows"),
        ({"reason": ["", ""]}, "its 'reason' is not a text for each of 4 rows"),
        ({"correct": np.ones(4)}, "it sets 'correct'; it can set reward, group, taken, reason, weight, term, credit"),
        ({"kept": "yes"}, "its 'kept' is not a number for each of 4 rows"),
    ],
)
def test_what_a_shape_cannot_return_is_refused(returned: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ShapeError, match=sentence):
        shaped(first_batch(rows()), [Shape("odd", lambda seen: returned)])


def test_a_shape_reads_what_it_declares_and_columns_stay_beside_the_batch() -> None:
    with pytest.raises(ColumnError, match="shape sly reads 'reward' without declaring it"):
        shaped(first_batch(rows()), [Shape("sly", lambda seen: {"reward": seen["reward"]}, ("group",))])
    extra = {"problem.extra": [f'{{"level": {i}, "topic": "t{i}"}}' for i in range(7)]}
    table = judged(first_batch(rows(**extra)), ["problem.level", "problem.topic"])
    assert by("problem.level", table) == list(range(7))
    assert by("problem.topic", table)[6] == "t6"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1]), st.sampled_from([None, 0.0, 1.0])), max_size=9)
)
def test_every_row_is_taken_or_has_a_reason_and_the_last_group_of_a_problem_stays(
    found: list[tuple[str, int, float | None]],
) -> None:
    given_rows = [(p, f"{p}h{level}", level, None, r, None if r is None else r == 1) for p, level, r in found]
    table = judged(first_batch(rows(given_rows)))
    taken, why, reward = by("taken", table), by("reason", table), by("reward", table)
    assert all((reason is None) == kept for kept, reason in zip(taken, why, strict=True))
    assert all((r is None) == (reason == UNJUDGED) for r, reason in zip(reward, why, strict=True))
    for problem in {p for p, _, _ in found}:
        last = max(level for p, level, _ in found if p == problem)
        of_last = [i for i, (p, level, _) in enumerate(found) if (p, level) == (problem, last)]
        assert all(taken[i] or reward[i] is None for i in of_last)
