"""Stored rollouts that rows of a plan continue or take up again: looked up by id, checked before the first token.

A continued rollout is whole: its parent's prompt; the kept tokens of its parent's completion with their log-probs;
inserted ones, which were not sampled, without; then its own. Spans tell these apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Bools, codes, ints, nulls, one_array, positions, ragged, take_or_null
from gradus.data.curation.continued import named_by, refuse_odd_stored
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import OWN, OWN_GOLD, PLAN, ROLLOUTS
from gradus.models.policy import PromptSide
from gradus.tasks.stages.context import StageContext

Row = Mapping[str, Any]
Span = dict[str, Any]

_SAMPLING = ("temperature", "top_p", "top_k")
_OF_PROMPT = ("hint_text", "messages", OWN_GOLD)
_OF_PLAN = ("plan_id", "wave", "call", "recall", "use", "about")
_OF_THE_ROW = ("rollout_id", "group_id", "sample", "round", *_OF_PLAN)
"""Columns that a row which takes another up again has of its own."""


@dataclass(frozen=True)
class Start:
    """The beginning of a completion before its first own token: k tokens with log-probs, null if not sampled."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    spans: tuple[Span, ...]
    """They cover the k tokens."""
    of_prompt: Mapping[str, Any]
    """Columns of the parent's prompt: the hint that it was shown, messages and a gold answer if not its problem's."""

    def spans_of(self, num_tokens: int) -> list[Span]:
        """The spans of a completion with `num_tokens` of its own behind these."""
        num = len(self.tokens)
        return _listed([*self.spans, _span(num, num + num_tokens, "sampled", trained=True)])


class Parents:
    """The stored rollouts that a plan builds on.

    BadInputError names the first row that cannot: its rollout is not there, is of another problem, failed, or lacks
    tokens.
    """

    def __init__(self, rows: pa.Table, plan: pa.Table, side: PromptSide | None) -> None:
        self.rows = ROLLOUTS.filled(rows, _COLUMNS)
        self._places = {name: place for place, name in enumerate(rows.column("rollout_id").to_pylist())}
        self._side = side
        self._inserted: dict[str, tuple[int, ...]] = {}
        refuse_odd_stored(plan)
        for column, verb in (("parent", "continues"), ("recall", "takes up again")):
            ids = one_array(PLAN.column(plan, column)).cast(pa.string())
            chosen = np.flatnonzero(~nulls(ids))
            self._refuse(plan.take(pa.array(chosen)), ids.take(pa.array(chosen)), verb, tokens=column == "parent")

    def start(self, row: Row, sampling: Mapping[str, float]) -> Start:
        """Return the beginning of the rollouts of a row with a parent; BadInputError if its cut is out of range.

        `sampling` are temperature, top_p and top_k of the row.
        """
        (parent,) = self.rows.slice(self._places[row["parent"]], 1).to_pylist()
        tokens, cut = parent["completion_tokens"], row["branch_at"]
        cut = len(tokens) if cut is None else cut if cut >= 0 else len(tokens) + cut
        if not 0 <= cut <= len(tokens):
            raise BadInputError(
                f"the plan cuts rollout {row['parent']} at token {row['branch_at']}, and it has {len(tokens)}",
                hint="set branch_at to at most its number of tokens",
            )
        trained = row["inherits"] == "trained"
        alike = all(parent[name] is None or parent[name] == sampling[name] for name in _SAMPLING)
        if trained and not alike and parent["logprobs"] is not None:
            theirs, ours = (
                ", ".join(f"{name} {each[name]:g}" for name in _SAMPLING if each[name] is not None)
                for each in (parent, sampling)
            )
            raise BadInputError(
                f"rollout {row['parent']} was sampled with {theirs}, and a row that trains its tokens asks for {ours}",
                hint='continue it with its own sampling, or as inherits = "context"',
            )
        sampled = alike and parent["logprobs"] is not None
        kept = parent["logprobs"][:cut] if sampled else [None] * cut
        more = self._tokenised(row)
        spans = [_inherited(span, cut, sampled=sampled, trained=trained) for span in _spans(parent)]
        return Start(
            prompt=tuple(parent["prompt_tokens"]),
            tokens=(*tokens[:cut], *more),
            logprobs=(*kept, *[None] * len(more)),
            spans=(*_listed(spans), *_listed([_span(cut, cut + len(more), "inserted", trained=False)])),
            of_prompt={name: parent[name] for name in _OF_PROMPT},
        )

    def taken_up(self, rows: Sequence[tuple[Row, str]], round_: int) -> pa.Table:
        """Return the stored rollouts that plan rows take up again, as rows with ids and groups of their own."""
        at = np.array([self._places[row["recall"]] for row, _ in rows], dtype=np.int64)
        own: dict[str, Sequence[object]] = {
            "rollout_id": [name for _, name in rows],
            "group_id": [row["group_id"] for row, _ in rows],
            "sample": [0] * len(rows),
            "round": [round_] * len(rows),
            **{name: [row[name] for row, _ in rows] for name in _OF_PLAN},
        }
        kept = [name for name in self.rows.column_names if name not in (*_OF_THE_ROW, "parent", "replaces")]
        return rollouts_of({**own, **{name: take_or_null(self.rows.column(name), at) for name in kept}}, len(rows))

    def _tokenised(self, row: Row) -> tuple[int, ...]:
        """The tokens of the text that a plan row inserts."""
        text = row["inserted"] or ""
        if text not in self._inserted:
            assert self._side is not None
            found = self._side.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
            if text and not found:
                raise BadInputError(
                    f"the text inserted in rollout {row['parent']} has no tokens: the tokenizer knows none of its "
                    "characters",
                    hint="insert another text",
                )
            self._inserted[text] = tuple(int(token) for token in found)
        return self._inserted[text]

    def _refuse(self, plan: pa.Table, ids: pa.Array, verb: str, *, tokens: bool) -> None:
        """Refuse rows of a plan (P,) for the rollouts that they name, (P,)."""
        at = positions(ids, self.rows.column("rollout_id"))

        def refuse(bad: Bools, what: str, hint: str) -> None:
            if len(odd := np.flatnonzero(bad)):
                raise BadInputError(f"the plan {verb} rollout {ids[int(odd[0])].as_py()}, {what}", hint=hint)

        cure = "name the artifact that holds it with --parents"
        refuse(at < 0, "which the rollouts given as parents do not hold", cure)
        if not len(at):
            return
        found = self.rows.take(pa.array(at))
        both, _ = codes(pa.concat_arrays([one_array(t.column("problem_id")).cast(pa.string()) for t in (plan, found)]))
        other = both[: len(at)] != both[len(at) :]
        refuse(other, "which answers another problem", "plan it for the problem that it answers")
        refuse(nulls(found.column("completion")), "whose request failed", "leave it out")
        if tokens:
            text = "which cannot be continued from a token: it has text alone"
            bare = nulls(found.column("completion_tokens")) | nulls(found.column("prompt_tokens"))
            cure = "sample with an engine that returns tokens (server.tokens = true)"
            refuse(bare | (self._side is None), text, cure)
            refuse(self._foreign(found), "whose tokens are another tokenizer's", "continue rollouts of this policy")

    def _foreign(self, found: pa.Table) -> Bools:
        """Return which rows have token ids that the tokenizer does not have, (P,)."""
        assert self._side is not None
        bad = np.zeros(found.num_rows, dtype=np.bool_)
        for name in ("prompt_tokens", "completion_tokens"):
            offsets, tokens = ragged(found.column(name))
            row = np.repeat(np.arange(len(bad)), np.diff(offsets))
            bad[row[ints(tokens) >= len(self._side.tokenizer)]] = True
        return bad


def parents_of(ctx: StageContext, plan: pa.Table, side: PromptSide | None) -> Parents:
    """Look up the stored rollouts that a plan names; those that it does not are not read."""
    wanted, none = named_by(plan), ROLLOUTS.restricted([*_COLUMNS]).arrow.empty_table()
    refs = ctx.inputs.get("parents", ()) if len(wanted) else ()
    found = [ctx.store.rows_with(ref, "rollout_id", wanted, _COLUMNS) for ref in refs]
    return Parents(pa.concat_tables([none, *found], promote_options="default"), plan, side)


def rollouts_of(columns: Mapping[str, Sequence[object] | pa.Array], num_rows: int) -> pa.Table:
    """Return rollouts with these columns (N,) in the order of the schema; others are null, or not there if sparse."""
    found = {name: pa.array(columns.get(name, [None] * num_rows), ROLLOUTS.type_of(name)) for name in ROLLOUTS.names}
    usual = ROLLOUTS.arrow.names
    return pa.table({name: each for name, each in found.items() if name in usual or each.null_count < num_rows})


def in_order(table: pa.Table) -> pa.Table:
    """Return rollouts with their columns in the order of the schema."""
    return table.select([name for name in ROLLOUTS.names if name in table.column_names])


def _spans(parent: Row) -> Sequence[Span]:
    """The spans of a stored rollout; of one without, a single one."""
    source = "sampled" if (parent["origin"] or OWN) == OWN else "given"
    return parent["spans"] or [_span(0, len(parent["completion_tokens"]), source, trained=True)]


def _inherited(span: Span, cut: int, *, sampled: bool, trained: bool) -> Span:
    """A span of the parent up to the cut; tokens whose log-prob is not kept are given."""
    source = span["source"] or "sampled"
    source = "given" if source == "sampled" and not sampled else source
    trained = trained and span["trained"] is not False
    return {**span, "end": min(span["end"], cut), "source": source, "trained": trained}


def _span(start: int, end: int, source: str, *, trained: bool) -> Span:
    return {"start": start, "end": end, "role": "assistant", "source": source, "trained": trained}


def _listed(spans: Sequence[Span]) -> list[Span]:
    """The spans that have a token."""
    return [span for span in spans if span["start"] < span["end"]]


_COLUMNS = tuple(name for name in ROLLOUTS.names if name not in ("parent", "replaces", "recall"))
"""The columns that are read of a stored rollout."""
