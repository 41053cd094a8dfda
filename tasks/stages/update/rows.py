"""The rows of an update: those of the batch that are taken, each refused with a sentence that names it if it cannot be.

The batch (gradus.data.curation.batch) is an input, or made in passing of rollouts and scores.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from gradus.components.rows import Marks
from gradus.data.arrays import Bools, Ints, codes, floats, ints, looked_up, nulls, one_array, pc, positions, ragged
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
from gradus.tasks.stages.update.origins import (
    compared_tokens,
    is_own,
    members,
    needs_sampler,
    refuse_spans,
    trained_tokens,
)

_NEEDED = ("prompt_tokens", "completion_tokens")
_SAMPLED = ("logprobs", "temperature")
"""Needed of rows that the policy wrote, or whose loss needs a sampler."""
_COLUMNS = (
    *("rollout_id", "problem_id", "group_id", "hint_level", "completion", "finish_reason", "policy", "top_p", "top_k"),
    *("origin", "spans", "trained_prompt_tokens", "use", "role", *_NEEDED, *_SAMPLED),
)


def learning_rows_of(table: pa.Table, config: UpdateConfig) -> Rows:
    """Return the columns of its rows that the steps of an update read."""
    trained, compared = trained_tokens(table), compared_tokens(table)
    temperature = np.nan_to_num(floats(table.column("temperature")).astype(np.float32), nan=1.0)
    measured = _token_columns(table, config)
    return learning_rows(
        prompts_of(table),
        tokens_of(table, "completion_tokens"),
        logprobs=_of_tokens(table, "logprobs", torch.nan).float(),
        temperature=torch.from_numpy(temperature),  # 1 in rows that were not sampled
        trained=None if trained is None else torch.from_numpy(trained),
        compared=None if compared is None else torch.from_numpy(compared),
        credit=_credit(table, config),
        marks={need: _marks(table, need) for need in config.shaping.carried if need.startswith(OF_MARKS)},
        measured={name: _of_tokens(table, name, torch.nan) for name in measured},
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
    """Return the columns of measures that have a list for each row: of its tokens."""
    there = (name for name in config.shaping.carried if name in table.column_names)
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


def _credit(table: pa.Table, config: UpdateConfig) -> torch.Tensor | None:
    """Credit of each token, 0 in a row to which no shape gave any; None if no row has any."""
    if CREDIT in table.column_names:
        return _of_tokens(table, CREDIT, 0.0)
    if CREDIT in config.needs:
        raise BadInputError(
            "the objective reads the column credit, and no shape of the update has made it",
            hint="add a shape that returns credit to update.shapes, such as value_gains",
        )
    return None


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
        _refuse(outside, table.column("rollout_id").to_pylist(), what, "its tokens are another tokenizer's")


def refuse_truncated(table: pa.Table, config: UpdateConfig) -> None:
    """Raise BadInputError naming the first row sampled with top_p or top_k.

    Its log-probs are renormalised over what was left, the trainer's over all: the ratio of both is biased (trl#6789).
    """
    cut = truncated(table) & needs_sampler(table, config)
    what = "was sampled with top_p or top_k, where no correction holds"
    hint = "update with correction = none, or roll out with top_p = 1 and top_k = 0"
    _refuse(cut, table.column("rollout_id").to_pylist(), what, hint)


def truncated(table: pa.Table) -> Bools:
    """Return which rows were sampled with top_p or top_k, (N,)."""
    return (floats(table.column("top_p")) < 1) | (ints(table.column("top_k")) > 0)


def _refuse_unusable(table: pa.Table, config: UpdateConfig) -> None:
    """Raise BadInputError naming the first row that lacks something, or whose reward or tokens make no sense."""
    rows, made = table.column("rollout_id").to_pylist(), "update from rollouts that `gradus rollout` made"
    for name in _NEEDED:
        _refuse(nulls(table.column(name)), rows, f"has no {name}", made)
    wanting = is_own(table) | needs_sampler(table, config)
    for name in _SAMPLED:
        _refuse(nulls(table.column(name)) & wanting, rows, f"has no {name}", _without_sampler(config))
    refuse_spans(table, rows)
    reward = floats(table.column("reward"))
    _refuse(~np.isfinite(reward), rows, "has a reward that is not finite", "correct the reward and score again")
    empty = (prompts_of(table).lengths == 0).numpy()
    _refuse(empty, rows, "has an empty prompt", "leave it out")
    recorded = "update from rollouts whose engine records them"
    _refuse(_uneven(table, "logprobs"), rows, "has not one log-prob for each of its tokens", recorded)
    if CREDIT in table.column_names:
        made = "correct the shape that gives it"
        _refuse(_uneven(table, CREDIT), rows, "has not one number of credit for each of its tokens", made)
    for name in _token_columns(table, config):
        made = "let a shape make one number a token of it (credit)"
        _refuse(_uneven(table, name), rows, f"has not one number of {name} for each of its tokens", made)
    if MARKS in table.column_names:
        made = "correct the shape or reward that marks it"
        _refuse(_beyond(table), rows, "has a mark that is not within its tokens", made)


def _uneven(table: pa.Table, column: str) -> Bools:
    """Return which rows have a list of another length than their completion, (N,)."""
    lengths = ints(pc.list_value_length(one_array(table.column(column))), null=-1)
    return ~nulls(table.column(column)) & (lengths != tokens_of(table, "completion_tokens").lengths.numpy())


def _beyond(table: pa.Table) -> Bools:
    """Return which rows have a mark that is not within their completion, (N,)."""
    offsets, marks = ragged(table.column(MARKS))
    row = np.repeat(np.arange(table.num_rows), np.diff(offsets))
    start, end = (ints(marks.field(name), null=-1) for name in ("start", "end"))
    size = tokens_of(table, "completion_tokens").lengths.numpy()[row]
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


def _refuse(bad: Bools, rows: Sequence[str], what: str, hint: str) -> None:
    odd = np.flatnonzero(bad)
    if len(odd):
        more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
        raise BadInputError(f"rollout {rows[int(odd[0])]} {what}{more}", hint=hint)
