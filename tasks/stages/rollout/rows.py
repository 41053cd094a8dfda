"""Rows of the table rollouts: finished completions, and ready-made texts in rows of a plan.

Columns are built whole: a row costs microseconds, not dicts. Ready-made texts are tokenised behind their prompts; a row
whose text does not fit is left out. They become rollouts of the origin that the plan names, with an end token and
without the log-probs of a sampler.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from gradus.data.arrays import nulls, positions
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import OWN_GOLD, PLAN, ROLLOUTS
from gradus.data.records import Json
from gradus.data.sources.reading import Refused
from gradus.data.unicode import num_halves, whole
from gradus.models.engines.base import Finished
from gradus.models.engines.sampling import cut_behind
from gradus.models.policy import PromptSide, completion_texts
from gradus.models.templates import PromptConfig
from gradus.models.training.warmstart import Example, example_of
from gradus.tasks.config.redaction import hide
from gradus.tasks.stages.rollout.groups import TRAINED, Asked, Row, refuse_empty, tokenised_prompts, with_problems
from gradus.tasks.stages.rollout.parents import rollouts_of

V = TypeVar("V")
_CARRIED = ("plan_id", "wave", "call", "messages", "role", "use", "about", OWN_GOLD, TRAINED, "parent", "replaces")
"""Columns that a rollout copies from its plan row, or has of the prompt that it continues."""
TOO_LONG = "longer than the policy's context"
_OF_PLAN = (
    *("problem_id", "group_id", "hint_level", "hint_text", "origin", "messages", OWN_GOLD, "source", TRAINED),
    *("plan_id", "wave", "call", "role", "use", "about"),
)
"""Columns that a given text has of its plan row."""


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
    halves = [num_halves(d.text or "") for d in done]
    what = "halves of characters (not valid Unicode) were replaced by U+FFFD"
    remarks = [d.error or (f"{num} {what}" if num else "") for d, num in zip(done, halves, strict=True)]
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
        "hint_text": [each.row["hint_text"] for each in asked],
        "policy": [whole(policy)] * num_rows,
        "engine": [whole(engine)] * num_rows,
        "temperature": [each.request.temperature for each in asked],
        "top_p": [each.request.top_p for each in asked],
        "top_k": [each.request.top_k for each in asked],
        "seed": [each.request.seed for each in asked],
        "spans": known(each.start.spans_of(len(d.tokens)) if each.start else None for each, d in rows),
        "origin": [each.row["origin"] or origin for each in asked],
        **{name: [each.row[name] for each in asked] for name in _CARRIED},
    }
    return rollouts_of(columns, num_rows)


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


@dataclass(frozen=True)
class Given:
    """The given texts of a plan."""

    plan: pa.Table
    """The plan without the rows whose text does not fit."""
    texts: Mapping[str, Example]
    """The prompt and the text of each row, as tokens, by the row's name."""
    refused: Refused
    side: PromptSide | None

    @property
    def counts(self) -> Mapping[str, Json]:
        """The tokens of the texts, and the rows that are left out by reason; nothing of a plan without any."""
        found: dict[str, Json] = {}
        if self.texts:
            found["given_tokens"] = sum(len(each.completion) for each in self.texts.values())
        if self.refused.reasons:
            found |= {"refused": dict(self.refused.reasons), "examples": [*self.refused.examples]}
        return found

    def rollouts(self, rows: Sequence[tuple[Row, str]], round_: int) -> pa.Table:
        """Return rows of the plan with their rollout ids as rollouts; no rows without a given text."""
        if not rows or self.side is None:
            return ROLLOUTS.arrow.empty_table()
        found = [self.texts[_name(row)] for row, _ in rows]
        made: dict[str, Sequence[object]] = {
            "rollout_id": [rollout_id for _, rollout_id in rows],
            "sample": [0] * len(rows),
            "round": [round_] * len(rows),
            "completion": completion_texts(self.side.tokenizer, [each.completion for each in found]),
            "prompt_tokens": [each.prompt for each in found],
            "completion_tokens": [each.completion for each in found],
            "finish_reason": ["stop"] * len(rows),
            **{name: [row[name] for row, _ in rows] for name in _OF_PLAN},
        }
        return rollouts_of(made, len(rows))


def given_texts(plan: pa.Table, problems: pa.Table, side: PromptSide | None, style: PromptConfig) -> Given:
    """Return the ready-made texts of plan rows; BadInputError if one cannot become tokens, or has no prompt."""
    wanted, refused = np.flatnonzero(~nulls(PLAN.column(plan, "given"))), Refused()
    if not len(wanted):
        return Given(plan, {}, refused, side)
    if side is None:
        raise BadInputError(
            "the plan is given texts, and the engine has no tokens of the policy to learn them by",
            hint="sample with an engine that returns tokens (server.tokens = true)",
        )
    chosen = plan.take(pa.array(wanted))
    places = positions(chosen.column("problem_id"), problems.column("problem_id"))
    empty: dict[str, Any] = dict.fromkeys(PLAN.names)
    rows = [({**empty, **row}, problem) for row, problem in with_problems(chosen, problems, places)]
    for row, problem in rows:
        if not row["messages"]:
            refuse_empty(problem)
    kept, texts = np.ones(plan.num_rows, dtype=np.bool_), dict[str, Example]()
    for at, (row, _), prompt in zip(wanted, rows, tokenised_prompts(rows, side, style), strict=True):
        example = example_of(side, prompt, row["given"])
        if example is None:
            kept[at] = False
            refused.add(TOO_LONG, f"problem {row['problem_id']}")
        else:
            texts[_name(row)] = example
    return Given(plan.filter(pa.array(kept)), texts, refused, side)


def _name(row: Row) -> str:
    return row["plan_id"] or row["group_id"]
