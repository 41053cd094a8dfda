"""Rows that a tracker begins with: an artifact of the same tracker, or a file of the user's.

start_rows(store, config)      # raises BadInputError or UsageError for rows of another tracker
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from gradus.components.chosen import TrackerConfig
from gradus.data.arrays import positions
from gradus.data.curation.tracked import TrackerError, changed_rows, merged, named
from gradus.data.errors import BadInputError, shortened
from gradus.data.lake.schema import TRACKERS
from gradus.data.lake.store import Ref, Store
from gradus.data.sources.tabular import read_user_table
from gradus.tasks.preflight.checks import file_of, in_lake


def start_ref(store: Store, tracker: TrackerConfig) -> Ref:
    """Return the artifact that a tracker begins with; those of a file are stored, named by their content."""
    ref = in_lake(store.root, tracker.start, TRACKERS.name)
    if ref is None:
        return store.put(TRACKERS.name, _of_file(tracker))
    _refuse_others(store, ref, tracker)
    return ref


def check_start(store: Store, tracker: TrackerConfig) -> None:
    """Raise BadInputError or UsageError if a tracker cannot begin with the rows that it names."""
    ref = in_lake(store.root, tracker.start, TRACKERS.name)
    if ref is None:
        _of_file(tracker)
    else:
        _refuse_others(store, ref, tracker)


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
    table, _ = read_user_table(path, TRACKERS, {}, strict=True)
    found = table.rename_columns([name.removeprefix(f"{tracker.short}.") for name in table.column_names])
    columns = tuple(name.partition(".")[2] for name in tracker.keeps)
    wanted = [name for name in (*tracker.by, *columns) if name in found.column_names]
    try:
        rows = changed_rows({name: found.column(name) for name in wanted}, tracker.by, columns)
    except TrackerError as error:
        said = str(error).replace("it returns", "it has")
        raise BadInputError(f"{tracker.short}.start: {shortened(str(path))}: {said}") from None
    return named(merged(None, rows, tracker.by), tracker.short, tracker.by)
