"""Digests of values, which identities of stages hold: those of rows that are written as JSON one by one."""

import hashlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.lake.row_keys import values_digest


def of_rows(table: pa.Table) -> str:
    """The digest as every version of Gradus has computed it."""
    return hashlib.sha256("".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()).hexdigest()[:32]


_PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text()),
    (pa.bool_(), st.booleans()),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.null(), st.none()),
    (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=2)),
    (pa.map_(pa.string(), pa.float64()), st.dictionaries(st.text(max_size=3), st.floats() | st.none())),
]


def _nested(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    type_, values = inner
    spans = pa.struct([("start", pa.int32()), ("of", type_)])
    span = st.fixed_dictionaries({"start": st.integers(0, 9) | st.none(), "of": values | st.none()})
    return [(pa.list_(type_), st.lists(values | st.none(), max_size=3)), (spans, span)]


_ONCE = [each for plain in _PLAIN if not pa.types.is_dictionary(plain[0]) for each in _nested(plain)]
_TYPES = [*_PLAIN, *_ONCE, *(each for nested in _ONCE for each in _nested(nested))]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables of several chunks and of any types, slices of longer ones, nulls among the values."""
    kinds = draw(st.lists(st.sampled_from(_TYPES), min_size=1, max_size=4))
    names = draw(st.lists(st.text(min_size=1), min_size=len(kinds), max_size=len(kinds), unique=True))
    num = draw(st.integers(0, 6))
    columns = [pa.array(draw(st.lists(v | st.none(), min_size=num, max_size=num)), t) for t, v in kinds]
    whole = pa.table(columns, names=names)
    begin, end = sorted(draw(st.tuples(st.integers(0, num), st.integers(0, num))))
    return pa.concat_tables([whole.slice(begin, end - begin), whole]) if draw(st.booleans()) else whole.slice(begin)


@settings(max_examples=60)
@given(tables())
def test_the_digest_of_values_is_that_of_rows_as_json(table: pa.Table) -> None:
    assert values_digest([table]) == of_rows(table)
    divided = [table.slice(0, table.num_rows // 2), table.slice(table.num_rows // 2)]
    assert values_digest(divided) == of_rows(table)


def test_an_identity_from_before_stays() -> None:
    table = pa.table({"100%": ['a", "b', "é\n"], "logprobs": pa.array([[-0.5, None], None], pa.list_(pa.float32()))})
    rows = b'{"100%": "a\\", \\"b", "logprobs": [-0.5, null]}\n{"100%": "\\u00e9\\n", "logprobs": null}\n'
    assert values_digest([table]) == hashlib.sha256(rows).hexdigest()[:32]


def test_rows_without_columns_count() -> None:
    table = pa.table({"problem_id": ["p", "q"]}).select([])
    assert values_digest([table]) == of_rows(table) == hashlib.sha256(b"{}\n{}\n").hexdigest()[:32]


def test_a_value_without_a_form_in_json_is_refused() -> None:
    with pytest.raises(TypeError):
        values_digest([pa.table({"a": [b"bytes"]})])
