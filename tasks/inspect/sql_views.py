"""`gradus sql`: the views runs, stages, metrics and samples above the tables of the lake, of all runs or of some."""

import contextlib
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa

from gradus.data.errors import CorruptArtifactError, OnDamage, refuse
from gradus.data.lake.manifest import REPORT
from gradus.data.lake.memory_limit import MemoryLimit
from gradus.data.lake.queries import Answer, Relation, View, select
from gradus.data.lake.schema import CHECKPOINTS
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Row
from gradus.tasks.config.settings import Home, memory_bytes
from gradus.tasks.inspect.lake_views import artifact, tables, views
from gradus.tasks.preflight.checks import full_name
from gradus.tasks.runs.history import run_folder, run_folders
from gradus.tasks.runs.journal import read_settings
from gradus.tasks.runs.lineage import Lineage, Run
from gradus.tasks.runs.records import Metrics, Report
from gradus.tasks.runtime.calls import with_clock
from gradus.tasks.stages.registry import installed

_NAME = rf"(?!{CHECKPOINTS})[a-z]+/[0-9a-f]{{4,64}}"
_PLAIN = re.compile(rf"""\b(from|join)\s+['"]?({_NAME})\b['"]?""", re.IGNORECASE)
"""An artifact where SQL has a table, in whichever quotes or none."""
_QUOTED = re.compile(f'"({_NAME})"')
_TEXT, _INT, _FLOAT, _TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("ms")
RUNS = pa.schema(
    [
        *(("run", _TEXT), ("verb", _TEXT), ("status", _TEXT), ("started", _TIME), ("seconds", _FLOAT)),
        *(("stages", _INT), ("reused", _INT), ("seed", _INT), ("settings", _TEXT)),
    ]
)
"""One row for each run; `started` in UTC, `seconds` of its stages, `settings` as JSON."""
STAGES = pa.schema(
    [
        *(("run", _TEXT), ("round", _INT), ("purpose", _TEXT), ("stage", _TEXT), ("attempt", _TEXT)),
        *(("status", _TEXT), ("started", _TIME), ("seconds", _FLOAT), ("output", _TEXT), ("artifact", _TEXT)),
        *(("error", _TEXT), ("pruned", _TEXT)),
    ]
)
"""One row for each attempt of a stage and for each reuse, which has no attempt; `pruned` is the day on which files of
a checkpoint were removed to make room."""
METRIC_ROWS = pa.schema(
    [
        *(("run", _TEXT), ("round", _INT), ("purpose", _TEXT), ("stage", _TEXT), ("step", _INT)),
        *(("name", _TEXT), ("value", _FLOAT), ("artifact", _TEXT)),
    ]
)
"""One row for each metric of each artifact that a run has; `step` is null for what the whole stage reported."""


@contextlib.contextmanager
def ask(
    home: Home, sql: str, run: str | None, say: Callable[[str], None], on_damage: OnDamage = refuse
) -> Generator[Answer]:
    """Return the answer to a query over the lake, or over the artifacts that one run made or read.

    `say` gets a sentence for each artifact that is left out because its columns have other types than its table's.
    What the query reads and is damaged, or missing although the journal of a run has it, is damage. A query may name
    an artifact as a table.
    """
    store = Store(home.lake)
    folders = run_folders(home.runs) if run is None else [run_folder(home.runs, run)]
    runs = [Run(folder, on_damage) for folder in folders]
    lineage = Lineage(store, runs, whole_lake=run is None, on_damage=on_damage)
    relations, views = relations_of(store, lineage, say)
    sql = _PLAIN.sub(r'\1 "\2"', sql)
    for name in _QUOTED.findall(sql):
        relations[name] = artifact(store, lineage, Ref.parse(full_name(home.lake, name)), say)
    memory = MemoryLimit(memory_bytes(), home.spill)
    with lineage.keeping(), select(relations, views, sql, memory) as answer:
        yield answer


def relations_of(
    store: Store, lineage: Lineage, say: Callable[[str], None]
) -> tuple[dict[str, Relation], dict[str, View]]:
    """Return what a query may name: the tables of the lake with runs, stages and metrics; and the views above them.

    `say` gets a sentence for each artifact that is left out.
    """
    remarks, runs = dict[str, None](), list(lineage.runs)

    def remark(text: str) -> None:  # once, however many views an artifact is left out of
        if text not in remarks:
            say(text)
        remarks[text] = None

    installed()  # their tables are the lake's
    hidden, above = views(store, lineage, remark)
    ours = {
        "runs": Relation(RUNS, partial(_table, partial(map, _run, runs), RUNS)),
        "stages": Relation(STAGES, partial(_table, partial(_stages, store, runs), STAGES)),
        "metrics": Relation(METRIC_ROWS, partial(_table, partial(_metrics, store, lineage), METRIC_ROWS)),
    }
    return {**ours, **tables(store, lineage, remark), **hidden}, above


def _table(rows: Callable[[], Iterable[Row]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows()), schema=schema)


def _run(run: Run) -> Row:
    settings = read_settings(run.folder, run.on_damage)
    ours = {"seed": settings.get("seed"), "settings": json.dumps(settings)}
    return {**run.brief, "started": _time(run.brief["started"]), **ours}


def _stages(store: Store, runs: list[Run]) -> Iterator[Row]:
    for run in runs:
        for row in run.attempts:
            ref = Ref.parse(row["output"])
            pruned = store.pruned_on(ref) or None if ref.table == CHECKPOINTS else None
            facts = {"run": run.name, "started": _time(row["started"]), "artifact": ref.digest, "pruned": pruned}
            yield {**row, **facts}


def _metrics(store: Store, lineage: Lineage) -> Iterator[Row]:
    for run in lineage.runs:
        ended = [row for row in run.attempts if row["status"] in ("finished", "failed")]
        last = {row["output"]: row["attempt"] for row in ended}
        for row in lineage.current(run):
            ref, end = Ref.parse(row["output"]), run.ended(last.get(row["output"]))
            report = report_of(store, lineage, ref)
            if end is not None:
                report = with_clock(report, end.get("clock", {}), end.get("step_clock", []))
            label = {"round": row["round"], "purpose": row["purpose"], "stage": row["stage"]}
            for step, metrics in _reported(report):
                for name, value in metrics.items():
                    yield {"run": run.name, **label, "step": step, "name": name, "value": value, "artifact": ref.digest}


def report_of(store: Store, lineage: Lineage, ref: Ref) -> Report:
    """Return the report of an artifact; an empty one if it is damaged and that raises nothing."""
    try:
        entries = [entry for entry in lineage.files(ref) if entry.name == REPORT]
        return json.loads(store.verified(ref, entries)[0].read_bytes()) if entries else {}
    except CorruptArtifactError as damage:
        lineage.damaged(ref, damage)
        return {}


def _reported(report: Report) -> Iterator[tuple[int | None, Metrics]]:
    """The metrics that an artifact's report has: of every step, and of the whole."""
    yield from enumerate(report.get("steps", ()))
    yield None, report.get("metrics", {})


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
