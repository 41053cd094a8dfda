"""Stage escalate: the groups whose every rollout failed are planned again, one hint level up.

GHPO (arXiv 2507.10628) shows a longer prefix of the solution while a group stays all wrong; the new group, with its
hint kept in the plan, takes the failed one's place. Roles: rollouts and scores of the previous level, its plan, hints.
Groups with unjudged rollouts are skipped, and those whose next hint is missing, reveals the answer, or was already
shown. Nothing to escalate is a good result: the plan is empty.
"""

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Column, Ints, bools, codes, ints, nulls, one_array, pc, positions, take_or_null
from gradus.data.curation.plan import hints_of_level, plan_rows
from gradus.tasks.config.curation import EscalateConfig
from gradus.tasks.stages.context import StageContext, StageResult

_NUM_SAMPLES = 16


def run(ctx: StageContext, config: EscalateConfig) -> StageResult:
    """Plan the failed groups again with the hints of `config.level`."""
    ctx.beat(0.0, "reading outcomes")
    plan = ctx.table("plan")
    rollouts = ctx.table("rollouts", ["rollout_id", "problem_id", "group_id", "round"])
    size, right, unjudged, round_ = _outcomes(plan, rollouts, ctx.table("scores", ["rollout_id", "correct"]))
    undecided = (right == 0) & ((unjudged > 0) | (size == 0))
    failed = np.flatnonzero((right == 0) & ~undecided)
    ctx.beat(0.5, f"{len(failed)} of {plan.num_rows} groups failed")
    lost = plan.take(pa.array(failed))
    texts, withheld = hints_of_level(ctx.table("hints"), config.level, lost.column("problem_id"))
    seen = bools(pc.equal(texts, one_array(lost.column("hint_text"))))
    missing = nulls(texts)
    chosen = ~missing & ~seen
    keep = pa.array(chosen)
    again = failed[chosen]
    table = _plan(config, ctx.seed, lost.filter(keep), texts.filter(keep), size[again], round_[again])
    ctx.out.write_table(table)
    ctx.beat(1.0, f"{table.num_rows} groups escalated to hint level {config.level}")
    skipped = {
        "not every rollout was judged": int(undecided.sum()),
        f"no hint of level {config.level}": int((missing & ~withheld).sum()),
        "the hint states the answer": int(withheld.sum()),
        "the hint was already shown": int(seen.sum()),
    }
    return StageResult(
        metrics={"data/escalated_hint_level": float(config.level)} if table.num_rows else {},
        summary={
            "groups": table.num_rows,
            "failed": len(failed),
            "skipped": {reason: count for reason, count in skipped.items() if count},
            "level": config.level,
        },
        samples=table.select(["problem_id", "hint_level", "hint_text", "reason"]).slice(0, _NUM_SAMPLES).to_pylist(),
    )


def _outcomes(plan: pa.Table, rollouts: pa.Table, scores: pa.Table) -> tuple[Ints, Ints, Ints, Ints]:
    """Return size, right and unjudged rollouts, and round of each planned group, (G,) each.

    A group that was never rolled out has size 0; rollouts of groups that the plan does not name are left aside.
    """
    group, names = codes(_group_names(rollouts))
    scored = positions(rollouts.column("rollout_id"), scores.column("rollout_id"))
    verdict = take_or_null(scores.column("correct"), scored)
    num = len(names)
    first = np.full(num, rollouts.num_rows, dtype=np.int64)
    np.minimum.at(first, group, np.arange(rollouts.num_rows))
    at = positions(_group_names(plan), names)

    def planned(values: Ints) -> Ints:
        return np.append(np.asarray(values, dtype=np.int64), 0)[at]  # -1 reads the zero at the end

    return (
        planned(np.bincount(group, minlength=num)),
        planned(np.bincount(group[bools(verdict)], minlength=num)),
        planned(np.bincount(group[nulls(verdict)], minlength=num)),
        planned(ints(rollouts.column("round"))[first]),
    )


def _group_names(table: pa.Table) -> Column:
    """The group of each row; a user's table without groups has one per problem."""
    return pc.coalesce(one_array(table.column("group_id")), one_array(table.column("problem_id")))


def _plan(config: EscalateConfig, seed: int, lost: pa.Table, texts: pa.Array, sizes: Ints, rounds: Ints) -> pa.Table:
    before = pc.fill_null(one_array(lost.column("hint_level")), 0)
    reasons = pc.binary_join_element_wise(
        "all ",
        pa.array(sizes).cast(pa.string()),
        " wrong at hint level ",
        before.cast(pa.string()),
        f", shown hint level {config.level}",
        "",
    )
    return plan_rows(
        lost.column("problem_id"),
        reasons=reasons,
        hint_levels=np.full(len(sizes), config.level),
        hint_texts=texts,
        rounds=rounds,
        n=config.sample.n,
        temperature=config.sample.temperature,
        max_tokens=config.sample.max_tokens,
        seed=seed,
    )
