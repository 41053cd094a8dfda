"""Files whose columns have types that their table cannot have."""

import pyarrow as pa

from gradus.data.lake.schema import TableSchema, kind_of


def misfit(found: pa.Schema, schema: TableSchema) -> str:
    """Return the column of a file whose type its table cannot have; empty if none has.

    Numbers may be wider than stated, and whatever has a text may stand for one.

    >>> from gradus.data.lake.schema import PROBLEMS
    >>> misfit(pa.schema([("problem_id", pa.string()), ("answer", pa.list_(pa.string()))]), PROBLEMS)
    'its column answer is not text'
    """
    for column in schema.columns:
        given = found.field(column.name).type if column.name in found.names else column.type
        if given != column.type and not _goes_with(given, column.type):
            return f"its column {column.name} is not {kind_of(column.type)}"
    return ""


def _goes_with(given: pa.DataType, wanted: pa.DataType) -> bool:
    if wanted == pa.string():
        return not pa.types.is_nested(given)
    try:
        alone = [pa.schema([("", type_)]) for type_ in (given, wanted)]
        pa.unify_schemas(alone, promote_options="permissive")
    except pa.ArrowTypeError:
        return False
    return True
