"""Stage wave: one function of a round's rollouts so far plans further ones.

Roles: problems; the plans, rollouts and scores of the round so far; difficulty and hints, both optional; a policy whose
tokens the filter prompt_tokens counts, and evaluated problems for the filter decontaminated; for a wave that reads
stored rollouts those of earlier rounds with their scores, and the policy that samples (`sampler`), from which their age
is counted; for one with a file of texts these (`traces`).
An empty plan is a good result: the wave has nothing more to ask.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.components.rows import ColumnError
from gradus.data.arrays import ints, pc
from gradus.data.curation.candidates import Candidates
from gradus.data.curation.continued import builds_on, refuse_odd_stored
from gradus.data.curation.plan import refuse_odd, wave_rows
from gradus.data.curation.round import Planned, Round, WaveError
from gradus.data.curation.traces import TRACE, highest, traces_of
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PLAN
from gradus.data.seeds import derive_seed
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.identity.loading import load
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.curate import choose, pool_of, sampled_rows
from gradus.tasks.stages.round_rows import beside_tracked, round_rows, stored_rows


def run(ctx: StageContext, config: PlanningConfig) -> StageResult:
    """Call the wave, and write its plan; BadInputError for a row that cannot be planned."""
    ctx.beat(0.0, "reading the round")
    name = f"wave {config.wave.label}"
    wave, call = int(str(ctx.facts["wave"])), int(str(ctx.facts["call"]))
    rows, groups = round_rows(ctx, config.reads)
    pool = pool_of(ctx, config.reads["problems"], config.curate.prompt if config.curate.counts_tokens else None)
    rows, pool = beside_tracked(ctx, rows, config.tracked), beside_tracked(ctx, pool, config.tracked)
    rng = np.random.default_rng(derive_seed(ctx.seed, "wave", ctx.round, wave, call))

    def drawn(pool: Candidates, num: int) -> Any:
        if "fits" in ctx.facts:  # rollouts that a budget has room for
            num = min(num, int(str(ctx.facts["fits"])) // config.sample.n)
        if num < 1:
            return np.zeros(0, dtype=np.int64)
        curate = config.curate.model_copy(update={"draw": num})
        return choose(pool, curate, derive_seed(ctx.seed, "wave", ctx.round, wave, call, "draw"))[0]

    round_ = Round(
        rows.reading(config.wave.needs, name),
        pool.reading(config.wave.needs, name),
        ctx.round,
        wave,
        call,
        groups,
        ctx.table("hints") if ctx.inputs.get("hints") else None,
        drawn,
        stored_rows(ctx, config.max_age).reading(None, name) if config.wave.reads("stored") else None,
        _traces(ctx, config, rows.table),
    )
    ctx.beat(0.5, f"{rows.num_rows} rollouts in {len(groups)} groups")
    try:
        planned: Planned | None = load(config.wave)(round_, rng)
    except WaveError as error:
        raise BadInputError(f"{name}: {error}") from None
    table = _plan(ctx, config, planned, wave, call)
    refuse_odd(table)
    refuse_odd_stored(table)
    ctx.out.write_table(table)
    ctx.beat(1.0, f"{table.num_rows} groups planned")
    num_stored, uses = int(builds_on(table).sum()), _uses(table)
    skipped = {} if planned is None else {reason: count for reason, count in planned.skipped.items() if count}
    return StageResult(
        metrics={"data/wave_rollouts": float(ints(table.column("n")).sum())} if table.num_rows else {},
        summary={
            "groups": table.num_rows,
            "skipped": skipped,
            **({"from_stored": num_stored} if num_stored else {}),
            **({"uses": uses} if uses else {}),
        },
        samples=table.select(["problem_id", "hint_level", "hint_text", "reason"]).slice(0, NUM_SAMPLES).to_pylist(),
    )


def _traces(ctx: StageContext, config: PlanningConfig, rows: pa.Table) -> pa.Table | None:
    """Return the texts of the wave's file for the problems of some rows, with what is measured of them."""
    if not (refs := ctx.inputs.get("traces", ())):
        return None
    measured = {column: by for column, by in config.tracked.items() if by == (TRACE,)}
    found = beside_tracked(ctx, traces_of(ctx.store, refs[0], pc.unique(rows.column("problem_id"))), measured)
    if not (column := config.wave.best):
        return found.table
    try:
        return highest(found, column).table
    except ColumnError as error:
        hint = "let the measure return a number for each text"
        raise BadInputError(f"{config.wave.short}.best: {error}", hint=hint) from None


def _plan(ctx: StageContext, config: PlanningConfig, planned: Planned | None, wave: int, call: int) -> pa.Table:
    found = planned or Planned(pa.array([], pa.string()), {})
    reasons = pa.repeat(pa.scalar(f"wave {config.wave.label}"), found.num_rows)
    plan = sampled_rows(ctx, config.sample, found.problem_id, reasons)
    before = ctx.table("plan", ["problem_id", "hint_level"])
    columns = _sampled_as_roles(config, found.columns) if "role" in found.columns else found.columns
    return wave_rows(plan, columns, before, round_index=ctx.round, wave=wave, call=call, seed=ctx.seed)


def _sampled_as_roles(config: PlanningConfig, columns: Mapping[str, pa.Array]) -> Mapping[str, pa.Array]:
    """Return the columns with the sampling that a role has in the recipe where a row says nothing else.

    Raise BadInputError for a role that the recipe lacks.
    """
    names = pc.coalesce(columns["role"], POLICY).to_pylist()
    samples = {POLICY: config.sample, **config.roles}
    if lacking := next((name for name in names if name not in samples), None):
        known = ", ".join(config.roles)
        raise BadInputError(
            f"wave {config.wave.label} plans rows of the role {lacking}, which the recipe lacks",
            hint=f"add [roles.{lacking}] to it, with a policy that samples or a server"
            + (f"; it has {known}" if known else ""),
        )
    found = dict(columns)
    for name in ("n", "temperature", "max_tokens"):
        values = pa.array([getattr(samples[role], name) for role in names], PLAN.type_of(name))
        found[name] = pc.coalesce(columns[name], values) if name in columns else values
    return found


def _uses(plan: pa.Table) -> dict[str, list[str]]:
    """Return the uses of the rows of each role, in their order; nothing of a plan for the policy to learn from."""
    roles, uses = (
        pc.coalesce(PLAN.column(plan, name), usual).to_pylist() for name, usual in (("role", POLICY), ("use", LEARN))
    )
    found: dict[str, list[str]] = {}
    for role, use in dict.fromkeys(zip(roles, uses, strict=True)):
        found.setdefault(role, []).append(use)
    return {} if found == {POLICY: [LEARN]} else found
