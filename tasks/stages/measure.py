"""Stage measure: columns of problems, rollouts or given texts that a frozen model's forward passes make.

Roles: policy, the model; problems; of rollouts also rollouts, scores and plans of the round, sampler, the policy that
sampled them if it is another, and hints of the problems if it reads them; of texts these (`traces`). A measure by
problem_id sees the problems, one by rollout_id the rollouts that are learned from and beside them those of other uses
that it declares, one by trace_id the texts of a file that a wave has, of the problems.
"""

import pyarrow as pa

from gradus.components.chosen import HINT_TEXTS, MeasureConfig
from gradus.components.rows import ColumnError
from gradus.data.arrays import nulls, one_array
from gradus.data.curation.traces import traces_of
from gradus.data.curation.tracked import TrackerError, changed_rows, named
from gradus.data.errors import BadInputError
from gradus.data.table_rows import TableRows
from gradus.models.errors import PolicyError
from gradus.models.measuring import MeasureError, Model
from gradus.models.policy import Policy, load_prompt_side
from gradus.tasks.artifacts.weights import LoadedPolicies, PolicyKey, loaded_policy, oom_as_stage_error
from gradus.tasks.config.rounds import MeasuringConfig
from gradus.tasks.host.processes import fault_point
from gradus.tasks.identity.loading import load
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.curate import pool_of
from gradus.tasks.stages.round_rows import beside_hints, beside_problems, round_rows

_TOKENS = {"prompt_tokens", "completion_tokens", "trained_prompt_tokens"}


def run(ctx: StageContext, config: MeasuringConfig) -> StageResult:
    """Ask the measure, and write its columns beside its key; BadInputError for what it cannot return."""
    chosen = config.measure
    ctx.beat(0.0, "reading rows and loading the model")
    rows, policy = _rows(ctx, config), _policy(ctx, config)
    done = 0

    def on_rows(num_rows: int) -> None:
        nonlocal done
        done += num_rows
        fault_point("measure:after_pass")
        ctx.beat(min(1.0, done / max(1, rows.num_rows)), f"{done} rows computed")

    model = Model(policy, config.prompt, config.micro_tokens, on_rows)
    table = _measured(chosen, rows, model)
    ctx.out.write_table(named(table, chosen.short, chosen.by))
    unknown = [int(nulls(table.column(name)).sum()) for name in chosen.component.columns]
    return StageResult(
        metrics={"data/measured_rows": float(table.num_rows)},
        summary={"rows": table.num_rows, "unknown": max(unknown)},
        samples=table.slice(0, NUM_SAMPLES).to_pylist(),
    )


def _rows(ctx: StageContext, config: MeasuringConfig) -> TableRows:
    """Return the problems, the texts of a file with their problems, or the rollouts that are learned from."""
    columns = config.reads["problems"]
    if config.measure.of_problems:
        return pool_of(ctx, columns, None)
    if config.measure.of_traces:
        problems = ctx.table("problems", columns)
        found = traces_of(ctx.store, ctx.one("traces"), one_array(problems.column("problem_id")))
        return found.over(beside_problems(found.table, problems, columns))
    rows = round_rows(ctx, config.reads)[0]
    return beside_hints(ctx, rows) if config.measure.reads(HINT_TEXTS) else rows


def _policy(ctx: StageContext, config: MeasuringConfig) -> Policy:
    """Return the model, as a sampler left it in this worker, or loaded for this stage alone."""
    ref, dtype, device = ctx.one("policy"), config.dtype, config.device
    warm = ctx.warm.of(LoadedPolicies).by_key.get(PolicyKey(ref.digest, dtype, device))
    found = warm or loaded_policy(ctx.store, ref, dtype, device, heads=True)
    if ctx.inputs.get("sampler") and _TOKENS & {*(config.measure.needs or _TOKENS)}:
        sampler = load_prompt_side(ctx.store.path(ctx.one("sampler"))).tokenizer
        if sampler.get_vocab() != found.tokenizer.get_vocab():
            raise BadInputError(
                f"measure {config.measure.label} reads tokens, and {config.measure.role} has another vocabulary than "
                "the policy that sampled them",
                hint="read the texts of completions, or take a model with the policy's tokenizer",
            )
    return found


def _measured(chosen: MeasureConfig, rows: TableRows, model: Model) -> pa.Table:
    """Return the columns of a measure beside its key column."""
    name, columns, (key,) = f"measure {chosen.label}", chosen.component.columns, chosen.by
    keys = rows.table.column(key)
    if not rows.num_rows:
        return changed_rows({key: keys, **{column: [] for column in columns}}, (key,), columns)
    try:
        with oom_as_stage_error(f"asking the {name}", "lower update.micro_tokens"):
            found = load(chosen)(rows.reading(chosen.needs, name), model)
        return changed_rows({key: keys, **found}, (key,), columns)
    except (TrackerError, MeasureError, ColumnError, PolicyError) as error:
        raise BadInputError(f"{name}: {error}") from None
