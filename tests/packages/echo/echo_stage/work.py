"""What the stage echo computes, checks and writes."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from echo_stage import EchoConfig
from gradus.data.errors import UsageError
from gradus.data.lake.schema import Column, TableSchema
from gradus.tasks.stages.context import StageContext, StageResult

ECHOES = TableSchema(
    "echoes",
    ("rollout_id",),
    (
        Column("rollout_id", pa.string(), "the rollout", required=True),
        Column("text", pa.string(), "its completion, as often as was asked"),
    ),
)


def check(config: EchoConfig, inputs: Mapping[str, Sequence[str]]) -> None:
    """Refuse what would be too much."""
    if config.times > 9:
        raise UsageError(f"echo.times = {config.times} is more than nine", hint="ask for fewer")


def run(ctx: StageContext, config: EchoConfig) -> StageResult:
    """Write each completion again."""
    rows = ctx.table("rollouts", ["rollout_id", "completion"])
    texts = [row["completion"] * config.times for row in rows.to_pylist()]
    texts = [text.upper() if config.loud else text for text in texts]
    ctx.out.write_table(pa.table({"rollout_id": rows.column("rollout_id"), "text": pa.array(texts, pa.string())}))
    return StageResult(metrics={"echo/length_mean": sum(map(len, texts)) / len(texts)}, summary={"rows": len(texts)})
