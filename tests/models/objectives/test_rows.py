"""The view of rows: statistics of groups, selection, and that every component reads what it declares alone."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.components import OF_ROWS
from gradus.components.description import Component
from gradus.components.registry import components, function_of
from gradus.components.rows import Marks
from gradus.data.lake.schema import OF_MARKS
from gradus.models.objectives.columns import COLUMNS, columns_of, place_of
from gradus.models.objectives.objective import Part, Term
from gradus.models.objectives.rows import ColumnError, Rows
from gradus.tasks.config.rounds import is_carried

REGISTERED = [each for kind in OF_ROWS for each in components(kind).values()]
LENGTHS = torch.tensor([2, 0, 3, 1])
MARKS = Marks(torch.tensor([2]), torch.tensor([1]), torch.tensor([3]), torch.tensor([0.5]), np.array([None]))
"""The last two tokens of the third row."""


def every_column(marks: Mapping[str, Marks] = {}) -> Rows:
    """Four rows of six tokens with all columns that there are, and some marks."""
    generator = torch.Generator().manual_seed(0)
    of_rows: dict[str, Any] = {
        "reward": torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64),
        "correct": torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64),
        "group": torch.tensor([0, 0, 1, 1]),
        "length": LENGTHS,
        "origin": np.array(["own", "own", "expert", "own"]),
    }
    shapes = {"token": (6,), "vocabulary": (6, 3)}
    of_tokens = {
        name: torch.log_softmax(torch.randn(*shapes[column.axis], generator=generator), -1)
        for name, column in COLUMNS.items()
        if column.axis != "row"
    } | {"tokens": torch.tensor([5, 6, 5, 7, 6, 5])}
    return Rows(of_rows, of_tokens, LENGTHS, marks=marks)


def part(component: Component, reads: frozenset[str]) -> Part:
    # Settings without a default: fixed_length's.
    settings = component.settings(**{"length_tokens": 4} if component.name == "fixed_length" else {})
    function = function_of(component)
    return Part(lambda rows: function(rows, **dict(settings)), f"{component.kind} {component.name}", reads)


@pytest.mark.parametrize("component", REGISTERED, ids=lambda each: each.name)
def test_a_component_reads_what_it_declares_and_nothing_else(component: Component) -> None:
    assert component.needs is not None
    declared = columns_of(component)
    carried = set(filter(is_carried, declared))
    marked = {name for name in carried if name.startswith(OF_MARKS)}
    rows = every_column(dict.fromkeys(marked, MARKS))
    listed = {name for name in carried - marked if name.endswith((".tokens", ".logp"))}  # a number for each token
    of_rows = {name: torch.zeros(rows.num_rows, dtype=torch.float64) for name in carried - marked - listed}
    rows = rows.adding(of_rows, {name: torch.zeros(len(rows.row), dtype=torch.float64) for name in listed})
    assert declared - carried <= {name for name, column in COLUMNS.items() if place_of(component) in column.places}
    found = part(component, declared)(rows)
    values = found[0] if isinstance(found, tuple) else found
    assert len(values) in (rows.num_rows, len(rows.row))
    for name in declared:
        with pytest.raises(ColumnError, match=f"{component.kind} {component.name} reads '{name}' without declaring it"):
            part(component, declared - {name})(rows)


@pytest.mark.parametrize(("per", "expected"), [("row", [3, 3]), ("token", [3, 4])])
def test_as_many_losses_as_rows_and_tokens_are_those_that_the_loss_declares(per: Any, expected: list[float]) -> None:
    rows = Rows({"group": torch.zeros(2)}, {"now.logp": torch.zeros(2)}, torch.tensor([2, 0]))
    term = Term(Part(lambda _: (torch.tensor([3.0, 4.0]), {"m": torch.tensor([3.0, 4.0])})), Part(len), per=per)
    loss, metrics = term.losses(rows)
    assert loss.tolist() == metrics["m"].tolist() == expected


def test_a_column_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ColumnError, match=r"loss mine reads 'logp', which is no column; there are reward, correct"):
        every_column().reading(frozenset(), "loss mine")["logp"]
    with pytest.raises(ColumnError, match="there is no column 'reward' here; there are group"):
        Rows({"group": torch.zeros(2)})["reward"]
    with pytest.raises(AttributeError, match=r'no attribute logp_old: .*such as rows\["old\.logp"\]'):
        _ = every_column().logp_old
    with pytest.raises(AttributeError, match=r'no attribute logp: .*such as rows\["'):
        _ = every_column().logp


def test_statistics_are_those_of_each_rows_group() -> None:
    rows = Rows({"group": torch.tensor([7, 3, 7, 7, 3]), "mode": np.array(["a", "b", "b", "a", "b"])})
    values = torch.tensor([1.0, 5.0, 2.0, torch.nan, 5.0], dtype=torch.float64)
    groups = rows.by("group")
    assert groups.num == 2
    assert groups.sum(values).tolist() == [3, 10, 3, 3, 10]
    assert groups.count(values).tolist() == [2, 2, 2, 2, 2]
    assert groups.mean(values).tolist() == [1.5, 5, 1.5, 1.5, 5]
    assert groups.std(values).tolist() == pytest.approx([0.5**0.5, 0, 0.5**0.5, 0.5**0.5, 0])
    assert groups.std(values, ddof=0).tolist() == pytest.approx([0.5, 0, 0.5, 0.5, 0])
    assert groups.varied(values).tolist() == [True, False, True, True, False]
    assert rows.by("group", "mode").count(torch.ones(5)).tolist() == [2, 2, 1, 2, 2]
    assert rows.having(mode="b").tolist() == [False, True, True, False, True]
    assert rows.having(mode=("a", "c"), group=7).tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("mask", [None, [True] * 6, [True, False, True, True, False, True]])
def test_sums_and_means_are_those_of_each_rows_counted_tokens(mask: list[bool] | None) -> None:
    # Rows of 2, 0, 3 and 1 tokens; a token that does not count may be NaN.
    counted = mask or [True] * 6
    rows = Rows({}, lengths=LENGTHS, mask=None if mask is None else torch.tensor(mask))
    powers = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    values = torch.tensor([value if counts else math.nan for value, counts in zip(powers, counted, strict=True)])
    values.requires_grad_()
    sums = [3.0, 0.0, 28.0, 32.0] if all(counted) else [1.0, 0.0, 12.0, 32.0]
    number = [2, 1, 3, 1] if all(counted) else [1, 1, 2, 1]
    means = rows.row_mean(values)
    assert rows.row_sum(values).tolist() == sums
    assert means.tolist() == pytest.approx([total / n for total, n in zip(sums, number, strict=True)])
    means.sum().backward()
    of_row = [0, 0, 2, 2, 2, 3]
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx(
        [counts / number[row] for counts, row in zip(counted, of_row, strict=True)]
    )
    assert rows.of_token(rows.row_sum(values)).tolist() == [sums[row] for row in of_row]


def test_values_that_are_not_one_a_token_are_refused() -> None:
    with pytest.raises(ColumnError, match="5 values do not fit 4 rows of 6 tokens"):
        Rows({}, lengths=LENGTHS).row_sum(torch.zeros(5))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
def test_selected_rows_keep_their_tokens_in_the_order_asked_for(lengths: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.permutations(range(len(lengths))))[: data.draw(st.integers(1, len(lengths)))]
    sizes = torch.tensor(lengths)
    number = torch.arange(int(sizes.sum()))
    mask = number % 2 == 0
    rows = Rows({"number": torch.arange(len(lengths))}, {"token": number}, sizes, mask)
    found = rows.select(torch.tensor(chosen))
    expected = [number.split(lengths)[row] for row in chosen]
    assert found["number"].tolist() == chosen
    assert found["token"].tolist() == torch.cat(expected).tolist()
    assert found.mask.tolist() == (torch.cat(expected) % 2 == 0).tolist()
    assert found.position.tolist() == [place for row in chosen for place in range(lengths[row])]
    assert found.row_sum(found["token"].double()).tolist() == [float(t[t % 2 == 0].sum()) for t in expected]
