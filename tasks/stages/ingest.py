"""Stage `ingest`: a source becomes a problems table, with a count and a reason for every row that was refused."""

from itertools import islice
from pathlib import Path

from gradus.data.sources.problems import problems_table
from gradus.data.sources.streams import open_source
from gradus.data.sources.tabular import Refused
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.stages.context import StageContext, StageResult

NUM_SAMPLES = 16


def run(ctx: StageContext, config: IngestConfig) -> StageResult:
    """Read the source and write its problems."""
    refused = Refused()
    rows = open_source(
        config.source,
        refused,
        split=config.split,
        subset=config.subset,
        revision=config.revision,
        streaming=config.streaming,
        generator=config.generator,
    )
    table = problems_table(
        islice(rows, config.limit) if config.limit else rows,
        refused,
        name=Path(config.source).stem if Path(config.source).is_file() else config.source,
        format_name=config.format,
        columns=config.columns,
        strict=config.strict,
    )
    ctx.out.write_table(table)
    num_refused = sum(refused.reasons.values())
    summary = {"rows": table.num_rows, "refused": dict(refused.reasons.most_common()), "examples": refused.examples}
    shown = table.slice(0, NUM_SAMPLES).select(["problem_id", "question", "solution", "answer"])
    metrics = {"data/ingested_frac": table.num_rows / (table.num_rows + num_refused)}
    return StageResult(metrics=metrics, summary=summary, samples=shown.to_pylist())
