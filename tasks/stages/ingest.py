"""Stage `ingest`: a source becomes a problems table, with a count and a reason for every row that was refused."""

from itertools import islice
from pathlib import Path

import pyarrow as pa

from gradus.data.errors import BadInputError
from gradus.data.records import Problem
from gradus.data.sources.problems import problems_table
from gradus.data.sources.reading import Refused
from gradus.data.sources.streams import open_source
from gradus.tasks.artifacts.policies import prompt_lengths
from gradus.tasks.config.curation import IngestConfig
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult


def run(ctx: StageContext, config: IngestConfig) -> StageResult:
    """Read the source and write its problems."""
    refused, source = Refused(), str(ctx.facts["source"])
    rows = open_source(
        source,
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
        name=Path(source).stem if Path(source).is_file() else source,
        format_name=config.format,
        columns=config.columns,
        strict=config.strict,
        keep_duplicates=config.duplicates == "keep",
        answers=config.answers,
    )
    if config.max_prompt_tokens:
        table = _fitting(ctx, config, table, refused)
    ctx.out.write_table(table)
    num_refused = sum(refused.reasons.values())
    summary = {"rows": table.num_rows, "refused": dict(refused.reasons.most_common()), "examples": refused.examples}
    shown = table.slice(0, NUM_SAMPLES).select(["problem_id", "question", "solution", "answer"])
    metrics = {"data/ingested_frac": table.num_rows / (table.num_rows + num_refused)}
    return StageResult(metrics=metrics, summary=summary, samples=shown.to_pylist())


def _fitting(ctx: StageContext, config: IngestConfig, table: pa.Table, refused: Refused) -> pa.Table:
    """Return the problems with a prompt that is short enough; BadInputError if there are none, or no policy."""
    limit = config.max_prompt_tokens
    if not ctx.inputs.get("policy"):
        raise BadInputError("max_prompt_tokens counts tokens of a policy, and none is given", hint="give --policy")
    rows: list[Problem] = table.select(["problem_id", "question", "messages"]).to_pylist()
    lengths = list(prompt_lengths(ctx.store.path(ctx.one("policy")), rows, config.prompt))
    for row, length in zip(rows, lengths, strict=True):
        if length > limit:
            refused.add(f"prompt of more than {limit} tokens", f"problem {row['problem_id']} ({length})")
    kept = table.filter(pa.array([length <= limit for length in lengths]))
    if not kept.num_rows:
        raise BadInputError(
            f"every prompt has more than max_prompt_tokens = {limit} tokens (the shortest {min(lengths)})",
            hint="raise max_prompt_tokens",
        )
    return kept
