"""Stage `hint`: hints of problems; none states its answer, but for those of a strategy that says so.

Roles: problems; difficulty and trackers, both optional, for a strategy that reads what rounds measure.
"""

from collections import Counter

import pyarrow as pa

from gradus.data.curation.candidates import Candidates
from gradus.data.errors import GateError
from gradus.data.hints import hints_of, states_early
from gradus.data.lake.schema import HINTS, PROBLEMS
from gradus.data.records import Problem
from gradus.tasks.config.curation import HintConfig
from gradus.tasks.identity.loading import load
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.curate import pool_of
from gradus.tasks.stages.round_rows import beside_tracked

BEAT_ROWS = 512


def run(ctx: StageContext, config: HintConfig) -> StageResult:
    """Write a row for each problem and level; problems that cannot be hinted at are counted with the reason.

    GateError if none can; of a strategy that reads what rounds measure a later round may have hints.
    """
    problems = _problems(ctx, config)
    strategy = load(config.strategy)
    rows: list[dict[str, object]] = []
    unhinted: Counter[str] = Counter()
    repeated = stated = 0
    missing: list[str] = []
    for index, problem in enumerate(problems):
        hints, reason = hints_of(problem, strategy, config.fractions, reveals=config.strategy.component.reveals)
        repeated += len({hint.text for hint in hints}) < len(hints)
        stated += states_early(problem)
        rows.extend({**vars(hint), "strategy": config.strategy.label} for hint in hints)
        if not hints:
            unhinted[reason] += 1
            missing.append(problem["problem_id"])
        if index % BEAT_ROWS == 0:
            ctx.beat(index / len(problems), f"{index} of {len(problems)} problems")
    if not rows and not config.reads_rounds:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in unhinted.most_common())
        raise GateError(
            f"none of {len(problems)} problems can be hinted at ({reasons})",
            hint="hints need worked solutions; a training without them takes escalate = []",
        )
    table, shown = pa.Table.from_pylist(rows, schema=HINTS.arrow), config.strategy.component.shown
    ctx.out.write_table(table.append_column("shown", pa.repeat(pa.scalar(shown), len(rows))) if shown else table)
    summary = {
        "rows": len(rows),
        "problems": len(problems),
        "unhinted": dict(unhinted),
        "unhinted_ids": missing[:100],
        **({"repeated_levels": repeated} if repeated else {}),
        **({"stated_early": stated} if stated else {}),
    }
    questions = {problem["problem_id"]: problem["question"] for problem in problems}
    samples = [{"question": questions[str(row["problem_id"])], **row} for row in rows[:NUM_SAMPLES]]
    metrics = {"data/hinted_frac": 1 - len(missing) / len(problems)}
    return StageResult(metrics=metrics, summary=summary, samples=samples)


def _problems(ctx: StageContext, config: HintConfig) -> list[Problem]:
    """Return the problems, each with the columns that the strategy declares beside its own, None for null."""
    found = ctx.table("problems").to_pylist()
    declared = [need for need in config.strategy.needs or () if need not in PROBLEMS.names]
    if not declared:
        return found
    rows = beside_tracked(ctx, pool_of(ctx, None, None), config.tracked)
    columns = {need: _values(rows, need) for need in declared}
    for row, problem in enumerate(found):
        problem.update({need: values[row] for need, values in columns.items()})
    return found


def _values(rows: Candidates, column: str) -> list[object]:
    if column in rows.columns:
        return rows.arrow(column).to_pylist()
    return [None if value != value else value for value in rows[column].tolist()]  # noqa: PLR0124 - NaN
