"""The rows of an update: those of the batch that are taken, each refused with a sentence that names it if it cannot be.

The batch (gradus.data.curation.batch) is an input, or made in passing of rollouts and scores. Log-probs of rows of
another origin than the policy (worked solutions, traces of a stronger model) are not compared with the policy's.
N rows, T completion tokens.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gradus.components.rows import Marks
from gradus.data.arrays import (
    Bools,
    Ints,
    bools,
    codes,
    floats,
    ints,
    looked_up,
    nulls,
    one_array,
    pc,
    positions,
    ragged,
)
from gradus.data.curation.batch import CONTINUED, CREDIT, REASON, REPLACED, TAKEN, UNJOINED, UNJUDGED, WEIGHT
from gradus.data.curation.by_use import of_use, seen_by
from gradus.data.curation.uses import LEARN
from gradus.data.errors import BadInputError, GateError
from gradus.data.lake.schema import MARKS, OF_MARKS, OWN
from gradus.data.lake.train_states import lineage
from gradus.data.table_rows import marks_in
from gradus.models.objectives.objective import MEMBERS
from gradus.models.objectives.ragged import Ragged
from gradus.models.objectives.rows import Rows
from gradus.models.training.learning_rows import learning_rows
from gradus.tasks.config.learning import SCORE_COLUMNS, UpdateConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.round_rows import beside
from gradus.tasks.stages.shape import batch_of, refuse_unpaired

_NEEDED = ("prompt_tokens", "completion_tokens")
_SAMPLED = ("logprobs", "temperature")
"""Needed of rows that the policy wrote, or whose loss needs a sampler."""
_SOURCE = "sampled"
"""The source of a span that the policy wrote, and of one that names none."""
_COLUMNS = (
    *("rollout_id", "problem_id", "group_id", "hint_level", "completion", "finish_reason", "policy", "top_p", "top_k"),
    *("origin", "spans", "trained_prompt_tokens", "use", "role", *_NEEDED, *_SAMPLED),
)


def learning_rows_of(table: pa.Table, config: UpdateConfig) -> Rows:
    """Return the columns of its rows that the steps of an update read."""
    if CREDIT in config.needs and CREDIT not in table.column_names:
        raise BadInputError(
            "the objective reads the column credit, and no shape of the update has made it",
            hint="add a shape that returns credit to update.shapes, such as value_gains",
        )
    trained, sampled = _of_spans(table)
    # Those that were sampled after the prompt that they are trained for.
    compared = sampled & np.repeat(is_own(table) & nulls(table.column("trained_prompt_tokens")), _lengths(table))
    temperature = np.nan_to_num(floats(table.column("temperature")).astype(np.float32), nan=1.0)
    measured = _token_columns(table, config)
    return learning_rows(
        prompts_of(table),
        tokens_of(table, "completion_tokens"),
        logprobs=_of_tokens(table, "logprobs", torch.nan).float(),
        temperature=torch.from_numpy(temperature),  # 1 in rows that were not sampled
        trained=torch.from_numpy(trained),
        compared=torch.from_numpy(compared),
        measured={name: _of_tokens(table, name, 0.0 if name == CREDIT else torch.nan) for name in measured},
        marks={need: _marks(table, need) for need in config.shaping.carried if need.startswith(OF_MARKS)},
        reward=torch.from_numpy(floats(table.column("reward")).copy()),
        group=torch.from_numpy(codes(table.column("group_id"))[0].copy()),
        correct=torch.from_numpy(floats(table.column("correct").cast(pa.int8())).copy()),
        origin=np.array(pc.coalesce(table.column("origin"), OWN).to_pylist(), dtype=np.str_),
        **{MEMBERS: torch.from_numpy(members(table, config))},
        **{
            name: _column(table.column(name))
            for name in (WEIGHT, *config.shaping.carried)
            if name in table.column_names and name not in measured
        },
    )


def _token_columns(table: pa.Table, config: UpdateConfig) -> list[str]:
    """Return the columns that have a list for each row, of its tokens: credit, and those of measures."""
    there = (name for name in (CREDIT, *config.shaping.carried) if name in table.column_names)
    return [name for name in there if pa.types.is_list(table.column(name).type)]


def _column(values: pa.ChunkedArray) -> torch.Tensor | np.ndarray[Any, Any]:
    """A column of the batch as parts of an objective see it: float64, NaN for null; texts as they are."""
    if pa.types.is_string(values.type):
        return np.array(values.to_pylist(), dtype=np.object_)
    return torch.from_numpy(floats(values).copy())


def tokens_of(table: pa.Table, column: str) -> Ragged:
    """Return a list column of token ids; a null becomes -1, which no policy knows."""
    return _ragged(table.column(column))


def prompts_of(table: pa.Table) -> Ragged:
    """Return the prompts that rows are trained for: those that they were sampled from, unless they name another."""
    return _ragged(pc.coalesce(table.column("trained_prompt_tokens"), table.column("prompt_tokens")))


def _ragged(column: pa.ChunkedArray) -> Ragged:
    offsets, values = ragged(column)
    return Ragged(torch.from_numpy(ints(values, null=-1).copy()), torch.from_numpy(offsets.copy()))


def _lengths(table: pa.Table) -> Ints:
    """The tokens of each completion, (N,)."""
    return tokens_of(table, "completion_tokens").lengths.numpy()


def _of_spans(table: pa.Table) -> tuple[Bools, Bools]:
    """Return which tokens carry loss, and which were sampled, (T,) each: all in rows without spans."""
    offsets, spans = ragged(table.column("spans"))
    given = np.repeat(np.diff(offsets) > 0, _lengths(table))
    sizes = ints(spans.field("end")) - ints(spans.field("start"))
    trained, sampled = np.ones(len(given), dtype=np.bool_), np.ones(len(given), dtype=np.bool_)
    # Spans cover the tokens of a row (see `refuse_spans`).
    trained[given] = np.repeat(bools(spans.field("trained"), null=True), sizes)
    sampled[given] = np.repeat(bools(pc.equal(pc.coalesce(spans.field("source"), _SOURCE), _SOURCE)), sizes)
    return trained, sampled


def _marks(table: pa.Table, need: str) -> Marks:
    """The marks `marks.NAME` of the rows."""
    column = table.column(MARKS) if MARKS in table.column_names else None
    found = marks_in(column, need.removeprefix(OF_MARKS))
    row, start, end, value = (torch.tensor(each) for each in (found.row, found.start, found.end, found.value))
    return Marks(row, start, end, value, found.label)


def _of_tokens(table: pa.Table, column: str, missing: float) -> torch.Tensor:
    """A number of all tokens, float64; a null becomes NaN, and `missing` stands in rows that have none at all."""
    _, values = ragged(table.column(column))
    completions, there = tokens_of(table, "completion_tokens"), ~nulls(table.column(column))
    found = torch.full((len(completions.values),), missing, dtype=torch.float64)
    rows = torch.from_numpy(np.flatnonzero(there))
    found[completions.places(rows)] = torch.from_numpy(floats(values).copy())
    return found


def is_own(table: pa.Table) -> Bools:
    """Return which rows the policy itself wrote, (N,)."""
    return bools(pc.equal(pc.coalesce(table.column("origin"), OWN), OWN))


def members(table: pa.Table, config: UpdateConfig) -> Bools:
    """Return the terms of the objective that each row belongs to, (N, terms); BadInputError for an unknown column."""
    table = table.set_column(table.column_names.index("origin"), "origin", pc.coalesce(table.column("origin"), OWN))
    found = np.ones((table.num_rows, len(config.objective)), dtype=np.bool_)
    for index, term in enumerate(config.objective):
        found[:, index] = having(table, term.rows, "update.terms")
        for name, values in term.without.items():
            found[:, index] &= ~having(table, {name: values}, "update.terms")
    return found


def having(table: pa.Table, rows: Mapping[str, object], setting: str) -> Bools:
    """Return which rows have these values, of several one, (N,); BadInputError for an unknown column."""
    found = np.ones(table.num_rows, dtype=np.bool_)
    for name, values in rows.items():
        if name not in table.column_names:
            known = ", ".join(sorted(table.column_names))
            raise BadInputError(f"{setting}: rows have no column {name}", hint=f"take one of {known}")
        column = table.column(name)
        try:
            wanted = pa.array(values if isinstance(values, tuple) else [values]).cast(column.type)
            found &= bools(pc.is_in(column, value_set=wanted))
        except pa.ArrowException:
            what = f"{setting}: {values!r} is no value of the column {name}, which is {column.type}"
            raise BadInputError(what, hint="correct it") from None
    return found


def needs_sampler(table: pa.Table, config: UpdateConfig) -> Bools:
    """Return which rows need the log-probs of a sampler, (N,)."""
    of_term = np.array([each.loss.component.needs_sampler for each in config.objective])
    return np.logical_or.reduce(members(table, config) & of_term, axis=1)


def judged_rows(ctx: StageContext, config: UpdateConfig) -> tuple[pa.Table, dict[str, int]]:
    """Rollouts of the policy, or of one up to `max_age` updates older, that the batch takes, as it has them.

    Rows of another use are left out. Rows of other origins may come from any policy. The table has the columns of
    rollouts, `correct`, those of the batch (gradus.data.curation.batch), and `age`, the number of updates since the
    policy that sampled it; with it come the numbers of rows and groups that were left out.

    GateError if another policy sampled them or no row has a reward; BadInputError names a row that cannot be used.
    """
    rollouts = of_use(seen_by(ctx.table("rollouts", _COLUMNS), config.role), LEARN)
    scores = ctx.table("scores", SCORE_COLUMNS)
    refuse_unpaired(rollouts, scores)
    policy = ctx.one("policy")
    _refuse_text_alone(rollouts, config)
    ages = _ages(rollouts, lineage(ctx.store, policy, config.max_age), policy.digest)
    table = _with_batch(ctx, config, rollouts.append_column("age", pa.array(ages)), scores)
    unjudged, own = nulls(table.column("reward")), is_own(table)
    asked = own if own.any() else ~own
    if unjudged[asked].all():
        raise GateError(
            f"no rollout has a reward: all {int(asked.sum())} judgements failed",
            hint="see the scores' column `error`, correct the reward and score again",
        )
    kept = table.filter(table.column(TAKEN))
    _refuse_unusable(kept, config)
    return kept, _left_out(table)


def _with_batch(ctx: StageContext, config: UpdateConfig, rollouts: pa.Table, scores: pa.Table) -> pa.Table:
    """Return rollouts with verdicts and the columns of their batch, which is made here if it is not an input."""
    batch = ctx.table("batch") if ctx.inputs.get("batch") else batch_of(ctx, config.shaping)[0]
    at = positions(rollouts.column("rollout_id"), batch.column("rollout_id"))
    if (at < 0).any():
        row = rollouts.column("rollout_id")[int(np.argmax(at < 0))].as_py()
        raise BadInputError(f"rollout {row} is not in the batch", hint="give the batch that was made of these rollouts")
    judged = looked_up(rollouts.drop_columns(["group_id"]), "rollout_id", scores, ["correct"])
    return beside(judged, batch, at)


def _left_out(table: pa.Table) -> dict[str, int]:
    """Counts of rows left out of the batch: groups that a hinted one replaced, rows without a reward, and others."""
    why = table.column(REASON)
    replaced = pc.unique(table.column("group_id").filter(pc.fill_null(pc.equal(why, REPLACED), fill_value=False)))
    counts = {"replaced_groups": len(replaced), "unjudged_rows": table.column("reward").null_count}
    num = Counter({each["values"]: each["counts"] for each in pc.value_counts(why.drop_null()).to_pylist()})
    others = num.total() - sum(num[known] for known in (CONTINUED, REPLACED, UNJOINED, UNJUDGED))
    more = {"unjoined_rows": num[UNJOINED], "shaped_out_rows": others, "replaced_parents": num[CONTINUED]}
    return {**counts, **{name: n for name, n in more.items() if n}}


def _ages(table: pa.Table, known: Mapping[str, int], expected: str) -> Ints:
    """Age of every row's policy; GateError if it is too old or not an ancestor of this policy."""
    sampled_by: list[str | None] = table.column("policy").to_pylist()
    own = is_own(table)
    odd = [i for i, digest in enumerate(sampled_by) if own[i] and digest not in known]
    if odd:
        first = odd[0]
        allowed = "the one being updated" + (f" and the {len(known) - 1} before it" if len(known) > 1 else "")
        raise GateError(
            f"{len(odd)} of {len(sampled_by)} rollouts were sampled from another policy than {allowed} "
            f"(first: {table.column('rollout_id')[first].as_py()} from {sampled_by[first] or 'an unnamed one'}, "
            f"expected {expected})",
            hint="roll out with this policy, update the one that they came from, or allow older ones with max_age",
        )
    return np.array([known.get(digest or "", 0) for digest in sampled_by], dtype=np.int64)


def refuse_unknown_tokens(table: pa.Table, vocab_size: int) -> None:
    """Raise BadInputError naming the first row with a token id that is not below `vocab_size`."""
    completions = tokens_of(table, "completion_tokens")
    for column, tokens in (("prompt_tokens", prompts_of(table)), ("completion_tokens", completions)):
        outside = np.zeros(table.num_rows, dtype=np.bool_)
        outside[tokens.row[(tokens.values < 0) | (tokens.values >= vocab_size)].numpy()] = True
        what = f"has {column} that the policy does not know"
        _refuse(table, outside, what, "its tokens are another tokenizer's")


def refuse_truncated(table: pa.Table, config: UpdateConfig) -> None:
    """Raise BadInputError naming the first row sampled with top_p or top_k.

    Its log-probs are renormalised over what was left, the trainer's over all: the ratio of both is biased (trl#6789).
    """
    cut = truncated(table) & needs_sampler(table, config)
    what = "was sampled with top_p or top_k, where no correction holds"
    hint = "update with correction = none, or roll out with top_p = 1 and top_k = 0"
    _refuse(table, cut, what, hint)


def truncated(table: pa.Table) -> Bools:
    """Return which rows were sampled with top_p or top_k, (N,)."""
    return (floats(table.column("top_p")) < 1) | (ints(table.column("top_k")) > 0)


def _refuse_unusable(table: pa.Table, config: UpdateConfig) -> None:
    """Raise BadInputError naming the first row that lacks something, or whose reward or tokens make no sense."""
    for name in _NEEDED:
        made = "update from rollouts that `gradus rollout` made"
        _refuse(table, nulls(table.column(name)), f"has no {name}", made)
    wanting = is_own(table) | needs_sampler(table, config)
    for name in _SAMPLED:
        _refuse(table, nulls(table.column(name)) & wanting, f"has no {name}", _without_sampler(config))
    refuse_spans(table)
    reward = floats(table.column("reward"))
    _refuse(table, ~np.isfinite(reward), "has a reward that is not finite", "correct the reward and score again")
    empty = (prompts_of(table).lengths == 0).numpy()
    _refuse(table, empty, "has an empty prompt", "leave it out")
    recorded = "update from rollouts whose engine records them"
    _refuse(table, _uneven(table, "logprobs"), "has not one log-prob for each of its tokens", recorded)
    for name in _token_columns(table, config):
        cure = "let a shape make one number a token of it (credit)"
        cure = "correct the shape that gives it" if name == CREDIT else cure
        _refuse(table, _uneven(table, name), f"has not one number of {name} for each of its tokens", cure)
    if MARKS in table.column_names:
        cure = "correct the shape or reward that marks it"
        _refuse(table, _beyond(table), "has a mark that is not within its tokens", cure)


def _uneven(table: pa.Table, column: str) -> Bools:
    """Return which rows have a list of another length than their completion, (N,)."""
    lengths = ints(pc.list_value_length(one_array(table.column(column))), null=-1)
    return ~nulls(table.column(column)) & (lengths != _lengths(table))


def _beyond(table: pa.Table) -> Bools:
    """Return which rows have a mark that is not within their completion, (N,)."""
    offsets, marks = ragged(table.column(MARKS))
    row = np.repeat(np.arange(table.num_rows), np.diff(offsets))
    start, end = (ints(marks.field(name), null=-1) for name in ("start", "end"))
    size = _lengths(table)[row]
    return np.bincount(row, (start < 0) | (end < start) | (end > size), table.num_rows) > 0


def _refuse_text_alone(table: pa.Table, config: UpdateConfig) -> None:
    """Raise BadInputError if rows of the policy have no tokens: files of other programs often hold text alone."""
    bare = np.flatnonzero(nulls(table.column("completion_tokens")) & is_own(table))
    if len(bare):
        raise BadInputError(
            f"{len(bare)} of {table.num_rows} rollouts have text alone (first: {table['rollout_id'][int(bare[0])]}); "
            f"an update reads {', '.join((*_NEEDED, *_SAMPLED))} as they were sampled",
            hint=_without_sampler(config),
        )


def _without_sampler(config: UpdateConfig) -> str:
    """Return the remedy for rows without a sampler's log-probs."""
    others = (each for each in config.objective if not each.loss.component.needs_sampler)
    origins = ", ".join(str(each.rows["origin"]) for each in others if "origin" in each.rows)
    known = f"set the origin of rows from elsewhere to {origins}" if origins else "set a loss for their origin"
    return f"take rollouts that `gradus rollout` made, or {known} (update.origin_losses)"


def refuse_spans(table: pa.Table) -> None:
    """Raise BadInputError naming the first row whose spans do not cover its tokens one after the other."""
    offsets, spans = ragged(table.column("spans"))
    counts, lengths = np.diff(offsets), _lengths(table)
    given = np.flatnonzero(counts)
    start, end = ints(spans.field("start"), null=-1), ints(spans.field("end"), null=-1)
    bad = np.zeros(len(counts), dtype=np.bool_)
    row = np.repeat(np.arange(len(counts)), counts)
    bad[row[end < start]] = True
    inner = np.flatnonzero(row[1:] == row[:-1])
    bad[row[inner[end[inner] != start[inner + 1]]]] = True
    bad[given] |= (start[offsets[given]] != 0) | (end[offsets[given + 1] - 1] != lengths[given])
    bad |= ~nulls(table.column("spans")) & (counts == 0) & (lengths > 0)
    if bad.any():
        raise BadInputError(
            f"rollout {table['rollout_id'][int(np.argmax(bad))]} has spans that do not cover its completion_tokens",
            hint="write start and end of each span so that the first begins at 0 and each begins where another ended",
        )


def _refuse(table: pa.Table, bad: Bools, what: str, hint: str) -> None:
    odd = np.flatnonzero(bad)
    if len(odd):
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        raise BadInputError(f"rollout {table['rollout_id'][int(odd[0])]} {what}{more}", hint=hint)
