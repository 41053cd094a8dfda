"""The reward `json_record`: a record in JSON, by its form, its keys and its values."""

from typing import Annotated, Any

from annotated_types import Ge

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed
from gradus.models.rewards.structured import answer_text, known, last_fenced, parsed, stated

Weight = Annotated[float, Ge(0.0)]


@component(
    "reward", name="json_record", paper="RL-Struct", columns=("record", "schema", "extra"), libraries=("jsonschema",)
)
def judge_json_record(
    row: Row,
    gold: str,
    max_chars: int,
    *,
    structure: Weight = 1.0,
    form: Weight = 1.0,
    valid: Weight = 1.0,
    content: Weight = 1.0,
) -> Verdict:
    """R = (w_s keys + w_f form + w_v valid + w_c content) / (sum of the weights), each from 0 to 1.

    "RL-Struct: A Lightweight Reinforcement Learning Framework for Reliable Structured Output in LLMs", whose weights
    are not published. keys: the share of the record's keys that the object has; form: 1 if it stands alone, or in one
    block between fences; valid: 1 if it can be read, and meets `schema`, a JSON Schema, if there is one; content: the
    share of keys with the record's value. `record` and `schema` are columns, or keys of `extra`; the record may be the
    answer. Between 0 and 1 it is no verdict.

    Args:
        row: The completion.
        gold: The record, if the row has none.
        max_chars: Longer completions are judged by their last characters.
        structure: Weight of the keys.
        form: Weight of the form.
        valid: Weight of validity.
        content: Weight of the values.
    """
    record, schema = known(row, gold, "record"), known(row, "", "schema")
    weights = (structure, form, valid, content)
    if not isinstance(record, dict) or not record:
        return failed("the row has no record: a JSON object")
    if sum(weights) == 0:
        return failed("all weights are 0")
    said, text = stated(row, max_chars), (answer_text(row, max_chars) or "").strip()
    if not isinstance(said, dict):
        return Verdict(0.0, "unparsed")
    fenced = last_fenced(text)
    alone = parsed(text) is not None or (fenced is not None and text.startswith("```") and text.endswith("```"))
    try:
        meets = not isinstance(schema, dict) or _meets(said, schema)
    except ValueError as error:
        return failed(str(error))
    keys = sum(key in said for key in record) / len(record)
    values = sum(key in said and _equal(said[key], value) for key, value in record.items()) / len(record)
    parts = (keys, float(alone), float(meets), values)
    return Verdict(sum(w * part for w, part in zip(weights, parts, strict=True)) / sum(weights), extracted=text[:1000])


def _equal(one: Any, other: Any) -> bool:
    """Equality as in JSON, where true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _meets(said: dict[str, Any], schema: dict[str, Any]) -> bool:
    """Return whether a value meets a JSON Schema, without anything fetched; ValueError for what is no schema."""
    import jsonschema  # noqa: PLC0415 - rows without a schema need none
    from referencing import Registry  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        return jsonschema.Draft202012Validator(schema, registry=Registry()).is_valid(said)
    except (jsonschema.SchemaError, Unresolvable, RecursionError) as error:
        raise ValueError(f"the schema cannot be used: {str(error)[:200]}") from None
