"""Finished completions as rows of the table rollouts, built column by column: a row costs microseconds, not dicts."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from gradus.data.lake.schema import OWN_GOLD, ROLLOUTS
from gradus.data.unicode import num_halves, whole
from gradus.models.engines.base import Finished
from gradus.models.engines.sampling import cut_behind
from gradus.models.policy import completion_texts
from gradus.tasks.config.redaction import hide
from gradus.tasks.stages.rollout.groups import TRAINED, Asked
from gradus.tasks.stages.rollout.parents import in_order

V = TypeVar("V")
_CARRIED = ("plan_id", "wave", "call", "role", "use", "about", TRAINED, "parent", "replaces")
"""Columns that a rollout copies from its plan row."""


def rollouts_table(
    rows: Sequence[tuple[Asked, Finished]],
    *,
    engine: str,
    policy: str,
    tokenizer: PreTrainedTokenizerBase | None,
    round_: int,
    origin: str | None = None,
) -> pa.Table:
    """Return finished requests as a table; a failed one, or an engine of text alone, leaves columns null.

    `tokenizer` is None if the engine returns text alone. `origin` is null for rows of the policy that is trained.
    """
    asked, done, num_rows = [each for each, _ in rows], [each for _, each in rows], len(rows)
    remarks = [d.error or replaced(d.text or "") for d in done]
    has_tokens = [tokenizer is not None and d.finish_reason != "error" for d in done]

    def known(values: Iterable[V]) -> list[V | None]:
        return [value if there else None for there, value in zip(has_tokens, values, strict=True)]

    columns: dict[str, Sequence[object]] = {
        "rollout_id": [each.request.rollout_id for each in asked],
        "problem_id": [each.row["problem_id"] for each in asked],
        "group_id": [each.row["group_id"] for each in asked],
        "sample": [each.sample for each in asked],
        "round": [round_] * num_rows,
        "completion": _texts(rows, tokenizer),
        "prompt_tokens": known(each.prompt for each in asked),
        "completion_tokens": known((*each.start.tokens, *d.tokens) if each.start else d.tokens for each, d in rows),
        "logprobs": known((*each.start.logprobs, *d.logprobs) if each.start else d.logprobs for each, d in rows),
        "finish_reason": [d.finish_reason for d in done],
        "error": [hide(whole(remark)) if remark else None for remark in remarks],
        "hint_level": [each.row["hint_level"] for each in asked],
        "hint_text": [each.start.hint_text if each.start else each.row["hint_text"] for each in asked],
        "policy": [whole(policy)] * num_rows,
        "engine": [whole(engine)] * num_rows,
        "temperature": [each.request.temperature for each in asked],
        "top_p": [each.request.top_p for each in asked],
        "top_k": [each.request.top_k for each in asked],
        "seed": [each.request.seed for each in asked],
    }
    schema = ROLLOUTS.restricted(columns).arrow  # one model sampled every token: no spans
    table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    sparse: dict[str, Sequence[object]] = {
        "spans": known(each.start.spans_of(len(d.tokens)) if each.start else None for each, d in rows),
        "messages": [each.start.messages if each.start else each.row["messages"] for each in asked],
        OWN_GOLD: [each.start.own_gold if each.start else each.row[OWN_GOLD] for each in asked],
        "origin": [each.row["origin"] or origin for each in asked],
        **{name: [each.row[name] for each in asked] for name in _CARRIED},
    }
    for name, values in sparse.items():
        if any(value is not None for value in values):
            table = table.append_column(name, pa.array(values, ROLLOUTS.type_of(name)))
    return in_order(table)


def _texts(rows: Sequence[tuple[Asked, Finished]], tokenizer: PreTrainedTokenizerBase | None) -> list[str | None]:
    """Return the sampled texts, without special tokens and without text behind a stop string."""
    if tokenizer is None:
        texts = [whole(done.text or "") for _, done in rows]
    else:
        begun = [asked.start.tokens if asked.start else () for asked, _ in rows]
        found = completion_texts(
            tokenizer, [(*b, *done.tokens) if b else done.tokens for b, (_, done) in zip(begun, rows, strict=True)]
        )
        heads = completion_texts(tokenizer, begun)
        texts = [
            text[: len(head)] + cut_behind(text[len(head) :], asked.request.stop)
            for text, head, (asked, _) in zip(found, heads, rows, strict=True)
        ]
    return [None if done.finish_reason == "error" else text for text, (_, done) in zip(texts, rows, strict=True)]


def replaced(text: str) -> str:
    """Return a remark on replaced characters in a completion from a server of text; empty if there are none."""
    count = num_halves(text)
    return f"{count} halves of characters (not valid Unicode) were replaced by U+FFFD" if count else ""
