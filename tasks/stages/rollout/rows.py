"""Finished completions as rows of the table rollouts, built column by column: a row costs microseconds, not dicts."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from gradus.data.lake.schema import ROLLOUTS
from gradus.data.unicode import num_halves, whole
from gradus.models.engines.base import Finished
from gradus.models.engines.sampling import cut_behind
from gradus.models.policy import completion_texts
from gradus.tasks.config.redaction import hide
from gradus.tasks.stages.rollout.groups import TRAINED, Asked

V = TypeVar("V")


def rollouts_table(
    rows: Sequence[tuple[Asked, Finished]],
    *,
    engine: str,
    policy: str,
    tokenizer: PreTrainedTokenizerBase | None,
    round_: int,
    origin: str | None = None,
) -> pa.Table:
    """Return finished requests as a table; what a failed one lacks, or an engine of text alone, is null.

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
        "prompt_tokens": known(each.request.prompt_tokens for each in asked),
        "completion_tokens": known(d.tokens for d in done),
        "logprobs": known(d.logprobs for d in done),
        "finish_reason": [d.finish_reason for d in done],
        "error": [hide(whole(remark)) if remark else None for remark in remarks],
        "hint_level": [each.row["hint_level"] for each in asked],
        "hint_text": [each.row["hint_text"] for each in asked],
        "policy": [whole(policy)] * num_rows,
        "engine": [whole(engine)] * num_rows,
        "temperature": [each.request.temperature for each in asked],
        "top_p": [each.request.top_p for each in asked],
        "top_k": [each.request.top_k for each in asked],
        "seed": [each.request.seed for each in asked],
    }
    schema = ROLLOUTS.restricted(columns).arrow  # one model sampled every token: no spans
    table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    for name in ("plan_id", "wave", "call", "messages", "role", "use", "about", TRAINED):
        if any(each.row[name] is not None for each in asked):
            values = pa.array([each.row[name] for each in asked], ROLLOUTS.type_of(name))
            table = table.append_column(name, values)
    origins = [each.row["origin"] or origin for each in asked]
    return table.append_column("origin", pa.array(origins, pa.string())) if any(origins) else table


def _texts(rows: Sequence[tuple[Asked, Finished]], tokenizer: PreTrainedTokenizerBase | None) -> list[str | None]:
    """Return the sampled texts, without special tokens and without text behind a stop string."""
    if tokenizer is None:
        texts = [whole(done.text or "") for _, done in rows]
    else:
        found = completion_texts(tokenizer, [done.tokens for _, done in rows])
        texts = [cut_behind(text, asked.request.stop) for text, (asked, _) in zip(found, rows, strict=True)]
    return [None if done.finish_reason == "error" else text for text, (_, done) in zip(texts, rows, strict=True)]


def replaced(text: str) -> str:
    """Return a remark on what is replaced in a completion that a server sent as text; empty if it is stored as sent."""
    count = num_halves(text)
    return f"{count} halves of characters (not valid Unicode) were replaced by U+FFFD" if count else ""
