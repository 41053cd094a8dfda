"""Candidates: columns of problems, measurements and keys of `extra` as NumPy, and what components declare."""

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.description import Component
from gradus.components.registry import components, function_of
from gradus.components.rows import ColumnError, Rows
from gradus.data.curation.candidates import Candidates, candidates
from gradus.data.curation.tracked import with_tracked
from gradus.data.errors import BadInputError
from gradus.tasks.config.rounds import is_tracked

REGISTERED = [each for kind in ("filter", "ranking", "sampler") for each in components(kind).values()]
REQUIRED: dict[str, dict[str, Any]] = {
    "prompt_tokens": {"high": 4},
    "where": {"condition": "true"},
    "column": {"column": "pass_rate"},
}
"""Settings without a default."""
EXTRA = [
    {"level": 3, "tags": ["x"], "split": "a", "weight": 2**70, "sizes": [1, 2]},
    {"level": None, "split": "b"},
    {"level": 1.5, "split": 7},
]


def pool() -> Candidates:
    """Three problems, of which the second was never measured."""
    problems = pa.table(
        {
            "problem_id": ["p0", "p1", "p2"],
            "question": ["1 + 1 =", "2 + 2 =", None],
            "messages": pa.array([None, None, [{"role": "user", "content": "3 ="}]]),
            "extra": [json.dumps(each) for each in EXTRA],
        }
    )
    known = pa.table({"problem_id": ["p0", "p2"], "n": [4, 2], "k": [1, 2], "history": [[0.0, 0.5], [1.0]]})
    table = candidates(problems, known).table.append_column("prompt_tokens", pa.array([3, 4, 5]))
    table = table.append_column("contaminated", pa.array([0, 1, 0]))
    return Candidates(table.append_column("domain", pa.array(["a", "b", None])))


def test_columns_are_numbers_with_nan_texts_and_lists() -> None:
    rows = pool()
    assert rows["n"].dtype == rows["prompt_tokens"].dtype == np.int64
    assert rows["n"].tolist() == [4, 0, 2]
    np.testing.assert_array_equal(rows["pass_rate"], [0.25, np.nan, 1.0])
    assert rows["question"].tolist() == ["1 + 1 =", "2 + 2 =", None]
    assert [each.tolist() for each in rows["history"]] == [[0.0, 0.5], [], [1.0]]
    np.testing.assert_array_equal(rows["reward_n"], [np.nan] * 3)


def test_a_key_of_extra_is_a_column() -> None:
    rows = pool()
    np.testing.assert_array_equal(rows["problem.level"], [3, np.nan, 1.5])
    assert rows["problem.split"].tolist() == ["a", "b", 7]
    assert rows["problem.tags"].tolist() == [["x"], None, None]
    assert rows["problem.sizes"].tolist() == [[1, 2], None, None]
    assert rows.select(np.array([2, 0]))["problem.level"].tolist() == [1.5, 3]
    assert rows["problem.weight"].tolist() == [2**70, None, None]
    assert rows.select(np.array([1]))["problem.tags"].tolist() == [None]  # others of the pool have it
    with pytest.raises(BadInputError, match="no problem has 'size' in its column extra"):
        rows["problem.size"]


def test_a_column_of_problems_has_the_name_that_it_has_in_the_rows_of_a_round() -> None:
    rows = pool()
    assert rows["problem.domain"].tolist() == rows["domain"].tolist() == ["a", "b", None]
    assert rows.select(np.array([1])).arrow("problem.domain").to_pylist() == ["b"]
    assert rows["problem.problem_id"].tolist() == ["p0", "p1", "p2"]


def test_rows_by_group() -> None:
    rows = Rows({"domain": np.array(["a", "b", "a"]), "rate": np.array([0.5, np.nan, 1.0])})
    groups = rows.by("domain")
    assert groups.mean(rows["rate"]).tolist() == [0.75, 0, 0.75]
    assert groups.std(rows["rate"]).tolist() == pytest.approx([0.125**0.5, 0, 0.125**0.5])
    assert groups.max(rows["rate"]).tolist() == [1, -np.inf, 1]
    assert groups.varied(rows["rate"]).tolist() == [True, False, True]
    assert rows.having(domain="a", rate=(0.5, 2)).tolist() == [True, False, False]


@pytest.mark.parametrize("component", REGISTERED, ids=lambda each: each.name)
def test_a_component_reads_what_it_declares_and_nothing_else(component: Component) -> None:
    assert component.needs is not None
    settings = dict(component.settings(**REQUIRED.get(component.name, {})))
    needs = (*component.needs, *([settings["column"]] if "column" in settings else ()))
    more = (2, np.random.default_rng(0)) if component.kind == "sampler" else ()
    rows = with_tracked(pool(), {need: ("problem_id",) for need in needs if is_tracked(need)}, [])

    def compute(declared: set[str]) -> None:
        function_of(component)(rows.reading(declared, component.name), *more, **settings)

    compute(set(needs))
    if "unmeasured" in settings:
        settings["unmeasured"] = "drop"
    for name in filter(rows.__contains__, needs):  # `where` may read more than there is
        with pytest.raises(ColumnError, match=f"{component.name} reads '{name}' without declaring it"):
            compute({*needs} - {name})


def test_a_column_that_there_is_not_is_named() -> None:
    with pytest.raises(ColumnError, match="filter mine reads 'levle', which is no column; there are problem_id, quest"):
        pool().reading((), "filter mine")["levle"]
    for name in ("problem.level", "spo.value"):
        with pytest.raises(ColumnError, match=f"filter mine reads '{name}' without declaring it"):
            pool().reading((), "filter mine")[name]
    with pytest.raises(ColumnError, match="column rate does not fit 2 rows"):
        Rows({"domain": np.array(["a", "b"]), "rate": np.zeros(3)})
    with pytest.raises(AttributeError, match=r'no attribute passrate: .*such as rows\["pass_rate"\]'):
        _ = pool().passrate


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 2) | st.just(math.nan)), min_size=1, max_size=12))
def test_a_rank_counts_the_rows_of_the_group_that_come_before(table: list[tuple[int, float]]) -> None:
    group, values = (np.array(each) for each in zip(*table, strict=True))
    key = [(math.isnan(value), 0.0 if math.isnan(value) else value, row) for row, value in enumerate(values)]
    expected = [sum(group[o] == group[r] and key[o] < key[r] for o in range(len(key))) for r in range(len(key))]
    assert Rows({"group": group}).by("group").rank(values).tolist() == expected
