"""Rows of an earlier run, or of files of the user, that a training begins with: refused if it could not use them.

start_ref(store, tracker)                          # rows that a tracker begins with
traces_ref(store, "traces.jsonl", [problems])      # completions that waves plan without sampling them
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from gradus.components.chosen import TrackerConfig
from gradus.data.arrays import Bools, Column, bools, ints, nulls, one_array, pc, positions, ragged
from gradus.data.curation.tracked import TrackerError, changed_rows, merged, named
from gradus.data.curation.uses import LEARN
from gradus.data.errors import BadInputError, GateError, shortened
from gradus.data.lake.schema import PLAN, ROLLOUTS, TRACKERS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import lineage
from gradus.data.records import Problem
from gradus.data.sources.problems import read_traces
from gradus.data.sources.reading import Refused
from gradus.data.sources.tabular import read_user_table
from gradus.tasks.config.curation import PROMPT_COLUMNS
from gradus.tasks.preflight.checks import file_of, in_lake


def refuse_foreign(store: Store, given: Ref, problems: Ref) -> None:
    """Raise BadInputError if none of the rows, hints or difficulty, is of a problem that is trained on."""
    theirs, ours = (store.read(ref, ["problem_id"]).column("problem_id") for ref in (given, problems))
    if not len(theirs) or not (positions(theirs, ours) >= 0).any():
        raise BadInputError(
            f"begin.{given.table}: none of the {len(theirs)} rows of {given} is of a problem that is trained on",
            hint="give those of the same problems",
        )


def refuse_other_policy(store: Store, difficulty: Ref, policy: Ref) -> None:
    """Raise GateError if no pass rate of a table is of the starting policy, or of one that it was made of.

    A table that names no policy, such as one of a user's own counts, is taken for the policy's.
    """
    offsets, values = ragged(store.read(difficulty, ["policies"]).column("policies"))
    newest = values.take(pa.array(offsets[1:][np.diff(offsets) > 0] - 1)).drop_null()
    known = dict.fromkeys(newest.to_pylist())
    if not known or known.keys() & lineage(store, policy).keys():
        return
    first = next(iter(known))
    raise GateError(
        f"begin.difficulty: {difficulty} was measured with the policy {first[:8]}, and the training begins with "
        f"{policy.digest[:8]}",
        hint="leave it out, so that `profile` measures anew; predict its pass rates from the other policy's with "
        "`gradus surface --tracker FILE` and the method surface; or set begin.any_policy = true",
    )


_OF_ROWS = (
    *("problem_id", "group_id", "n", "hint_level", "hint_text", "shown", "temperature", "max_tokens", "seed"),
    *("top_p", "top_k", "reason"),
)
"""Columns that rows of a given plan may have; names and seeds are made anew."""


def refuse_odd_plan(store: Store, plan: Ref, problems: Sequence[Ref], hints: Ref | None, levels: int) -> bool:
    """Return whether a row names the level of a hint, and not its text; BadInputError for a row that cannot be planned.

    Args:
        store: Where the tables are.
        plan: The rows.
        problems: The problems of each phase.
        hints: The hints that the training begins with.
        levels: Levels of the hints that it builds otherwise.
    """
    rows = store.read(plan)
    if odd := next((n for n in rows.column_names if n not in _OF_ROWS and rows[n].null_count < rows.num_rows), ""):
        raise BadInputError(f"begin.plan: it has the column {odd}, which waves decide", hint="leave the column out")
    names = rows.column("problem_id")
    for ref in problems:
        unknown = positions(names, store.read(ref, ["problem_id"]).column("problem_id")) < 0
        _refuse_row(names, unknown, "is not trained on", f"plan problems of {ref}: `gradus plan --problems {ref}`")
    level, text = (PLAN.column(rows, name) for name in ("hint_level", "hint_text"))
    number, bare = ints(level), nulls(text)
    _refuse_row(names, ~bare & (number < 1), "has a hint_text and no hint_level", "give the level, from 1 on, too")
    asked = bare & (number > 0)
    if hints is not None:
        known = store.read(hints, ["problem_id", "level"])
        theirs = (one_array(known.column("problem_id")), one_array(known.column("level")))
        there = positions(_keys(names, level), _keys(*theirs)) >= 0
        _refuse_row(names, asked & ~there, "has a hint_level that begin.hints lacks", "give one of its levels")
    else:
        what = f"has a hint_level above {levels}, the levels of hint.fractions"
        _refuse_row(names, asked & (number > levels), what, "lower it, add fractions, or give the hint_text too")
    return bool(asked.any())


def _keys(problem_id: Column, level: Column) -> pa.Array:
    return one_array(pc.binary_join_element_wise(problem_id, one_array(level).cast(pa.string()), "\0"))


def _refuse_row(names: Column, odd: Bools, what: str, hint: str) -> None:
    """Raise BadInputError that names the first odd row and its problem."""
    if odd.any():
        at = int(np.argmax(odd))
        raise BadInputError(f"begin.plan: row {at + 1}: problem {names[at].as_py()} {what}", hint=hint)


def refuse_unusable(
    store: Store, rollouts: Sequence[Ref], scores: Sequence[Ref], problems: Ref, policy: Ref, max_age: int
) -> None:
    """Raise BadInputError for rollouts that the first round could not take up again.

    They are learned from, of problems that are trained on, have scores, and come from the starting policy or one that
    it was made of by at most `max_age` updates.
    """
    rows = pa.concat_tables(
        [store.read(ref, ["rollout_id", "problem_id", "policy", "use"]) for ref in rollouts], promote_options="default"
    )
    judged = pa.concat_tables([store.read(ref, ["rollout_id"]) for ref in scores])
    known = store.read(problems, ["problem_id"]).column("problem_id")
    names = rows.column("rollout_id")
    other = ~bools(pc.equal(pc.fill_null(ROLLOUTS.column(rows, "use"), LEARN), LEARN))
    foreign = positions(rows.column("problem_id"), known) < 0
    for odd, what, hint in (
        (other, "is of another use than learning", "rows that its updates learned from"),
        (foreign, "is of a problem that is not trained on", "the same problems"),
        (positions(names, judged.column("rollout_id")) < 0, "has no score in begin.scores", "their scores"),
    ):
        if odd.any():
            first = names[int(np.argmax(odd))].as_py()
            raise BadInputError(f"begin.rollouts: rollout {first} {what}", hint=f"give rollouts of a run with {hint}")
    policies = pa.array([*lineage(store, policy, max_age)])
    if not np.asarray(pc.is_in(one_array(rows.column("policy")), value_set=policies)).any():
        raise BadInputError(
            f"begin.rollouts: no rollout was sampled by {policy}, or by one of the {max_age} policies before it",
            hint="begin with the policy of that run (policy = ...), or raise update.max_age",
        )


def start_ref(store: Store, tracker: TrackerConfig) -> Ref:
    """Return the artifact that a tracker begins with; the rows of a file are stored, named by their content."""
    found = start_rows(store, tracker)
    return found if isinstance(found, Ref) else store.put(TRACKERS.name, found)


def start_rows(store: Store, tracker: TrackerConfig) -> Ref | pa.Table:
    """Return the artifact or the rows of a file that a tracker begins with.

    Raise BadInputError or UsageError if it cannot begin with them.
    """
    ref = in_lake(store.root, tracker.start, TRACKERS.name)
    if ref is None:
        return _of_file(tracker)
    _refuse_others(store, ref, tracker)
    return ref


def foreign_rows(store: Store, tracker: TrackerConfig, start: Ref, problems: Sequence[Ref]) -> list[str]:
    """Return a sentence if rows that a tracker begins with are of problems of no training set, else nothing.

    Raise BadInputError if all rows are. A tracker that keeps nothing by problem has no such rows.
    """
    if "problem_id" not in tracker.by:
        return []
    theirs = store.read(start, ["problem_id"]).column("problem_id")
    ours = pa.chunked_array([each for ref in problems for each in store.read(ref, ["problem_id"])["problem_id"].chunks])
    num, num_foreign = len(theirs), int((positions(theirs, ours) < 0).sum())
    if num and num_foreign == num:
        raise BadInputError(
            f"{tracker.short}.start: none of the {num:,} rows of {tracker.start} is of a problem that is trained on",
            hint="give rows of the same problems; `gradus sql 'select problem_id, question from problems'` lists them",
        )
    if not num_foreign:
        return []
    are = "is of a problem that is" if num_foreign == 1 else "are of problems that are"
    return [f"{tracker.short}.start: {num_foreign:,} of {num:,} rows {are} not trained on"]


def _refuse_others(store: Store, ref: Ref, tracker: TrackerConfig) -> None:
    """Raise BadInputError for rows of another tracker, without its columns, or kept with other settings."""
    what, columns = f"{tracker.short}.start: {ref}", store.columns(ref)
    if missing := next((name for name in (*tracker.by, *tracker.keeps) if name not in columns), ""):
        theirs = dict.fromkeys(name.partition(".")[0] for name in columns if "." in name)
        raise BadInputError(
            f"{what} has no column {missing}, but {', '.join(columns)}",
            hint=f"it is of the tracker {' or '.join(theirs)}: give rows of {tracker.label}",
        )
    kept = store.manifest(ref).config.get("tracker")
    settings = kept if isinstance(kept, dict) else {}
    for name, value in tracker.model_dump(mode="json").items():
        if name in tracker.settings and settings.get(name, value) != value:
            raise BadInputError(
                f"{what} was kept with {name} = {settings[name]}, and the recipe says {name} = {value}",
                hint=f"set {name} = {settings[name]}, or begin without these rows",
            )


def _of_file(tracker: TrackerConfig) -> pa.Table:
    """Return the rows of a file, whose columns may be called COLUMN or NAME.COLUMN."""
    path: Path = file_of(tracker.start, TRACKERS.name)
    table = read_user_table(path, TRACKERS, {})
    found = table.rename_columns([name.removeprefix(f"{tracker.short}.") for name in table.column_names])
    columns = tuple(name.partition(".")[2] for name in tracker.keeps)
    wanted = [name for name in (*tracker.by, *columns) if name in found.column_names]
    try:
        rows = changed_rows({name: found.column(name) for name in wanted}, tracker.by, columns)
    except TrackerError as error:
        said = str(error).replace("it returns", "it has")
        raise BadInputError(f"{tracker.short}.start: {shortened(str(path))}: {said}") from None
    return named(merged(None, rows, tracker.by), tracker.short, tracker.by)


def traces_ref(store: Store, path: str, problems: Sequence[Ref]) -> tuple[Ref, list[str]]:
    """Store the texts of a file, named by their content, and return a remark on rows that are left out, if any are.

    BadInputError if no row is of one of the problems.
    """
    known: dict[str, Problem] = {
        row["problem_id"]: row for ref in problems for row in store.read(ref, PROMPT_COLUMNS).to_pylist()
    }
    refused = Refused()
    traces = read_traces(Path(path), [*known.values()], refused)
    rows = [{"rollout_id": str(number), **each} for number, each in enumerate(traces)]
    columns = dict.fromkeys(("rollout_id", "problem_id", "completion", "source"), pa.string())
    table = pa.Table.from_pylist(rows, schema=pa.schema(columns))
    num = refused.reasons.total()
    reasons = ", ".join(f"{reason}: {count}" for reason, count in refused.reasons.most_common())
    first = next(iter(refused.examples), "")
    remark = f"{path}: {num} of {num + len(traces)} rows are left out ({reasons}; first {first})"
    return store.put(ROLLOUTS.name, table), [remark] if num else []


def refuse_unsolved(store: Store, problems: Sequence[Ref]) -> None:
    """Raise BadInputError if no problem has a worked solution."""
    columns = [store.read(ref, ["problem_id", "solution"]).column("solution") for ref in problems]
    if all(column.null_count == len(column) for column in columns):
        raise BadInputError("no problem has a worked solution to give", hint="see `gradus ingest`")
