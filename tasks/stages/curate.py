"""Stage curate: select problems, by their difficulty if known, into a plan with a reason for every row.

Filters in order, then a ranking, then the top, then a draw. Roles: problems; difficulty, a policy, whose tokens the
filter prompt_tokens counts, evaluated problems, which the filter decontaminated looks for, and hints for problems that
are shown one from the start, all optional.
A problem without a difficulty row passes the difficulty filters unless they say `unmeasured=drop`.
With the role plan its rows are taken as they are, in place of a choice: those of a round by its number.
An empty plan is a failure that names what dropped the problems.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.components.chosen import Chosen, chosen_in
from gradus.components.rows import Rows
from gradus.data.arrays import Bools, Column, Floats, Ints, floats, ints, one_array, pc, positions
from gradus.data.curation.candidates import CONTAMINATED, PROMPT_TOKENS, Candidates, candidates
from gradus.data.curation.overlap import contaminated, texts_of
from gradus.data.curation.plan import given_rows, hinted, plan_rows, wave_rows, with_hints
from gradus.data.curation.results import DECIMALS, Draw, Selection, apply_filters, rank
from gradus.data.errors import GateError
from gradus.data.lake.store import Ref
from gradus.data.seeds import derive_seed
from gradus.models.templates import PromptConfig
from gradus.tasks.artifacts.policies import prompt_lengths
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.config.rounds import round_columns
from gradus.tasks.identity.loading import load
from gradus.tasks.runs.records import Sample
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.round_rows import beside_tracked

_OF_GIVEN = ("n", "temperature", "max_tokens", "hint_level", "hint_text", "shown", "top_p", "top_k", "reason")
"""Columns of a given plan that its rows keep."""
_NUM_IDS, _NUM_PLANNED, _NUM_DROPPED = 100, 12, 4
"""Problem ids in the summary; planned and dropped rows among the samples."""


def run(ctx: StageContext, config: CurateConfig) -> StageResult:
    """Choose problems and write the plan; raise GateError if none is left."""
    ctx.beat(0.0, "reading problems and difficulty")
    if ctx.inputs.get("plan"):
        return _given(ctx, config)
    pool = pool_of(ctx, _columns(config), config.prompt if config.counts_tokens else None)
    pool = beside_tracked(ctx, pool, config.tracked)
    ctx.beat(0.3, f"filtering {pool.num_rows} problems")
    taken, why, verdict, reasons, ties = choose(pool, config, derive_seed(ctx.seed, "curate", ctx.round))
    if not len(taken):
        causes = "; ".join(f"{reason}: {count}" for reason, count in reasons.items()) or "there are no problems"
        raise GateError(f"no problem is left to plan ({causes})", hint="loosen the filters or measure more problems")
    ctx.beat(0.6, f"planning {len(taken)} problems")
    chosen = pool.select(taken).table
    reasons_ = pc.binary_join_element_wise(_measured_text(chosen), why, ", ")
    hints, unhinted = _hints(ctx, chosen.column("problem_id"), config)
    if hints is not None:
        there = pa.array(ints(hints.column("hint_level")) > 0)
        shown = pc.if_else(there, f", shown hint level {config.hint_level}", "")
        reasons_ = pc.binary_join_element_wise(reasons_, shown, "")
    plan = sampled_rows(ctx, config.sample, chosen.column("problem_id"), reasons_, hints)
    ctx.out.write_table(plan)
    ctx.beat(1.0, f"{plan.num_rows} problems planned")
    return _result(pool, chosen, plan, verdict, reasons, {**ties, **_unmeasured(ctx, pool, config), **unhinted})


def _given(ctx: StageContext, config: CurateConfig) -> StageResult:
    """Write the rows of a given plan that the round takes, named by the round; what a row lacks is the recipe's.

    Raise BadInputError for a hint that a row names by its level, and that its problem does not have.
    """
    given = given_rows(ctx.table("plan"), ctx.round, config.draw)
    pool = pool_of(ctx, _columns(config), None)
    reasons = pa.repeat(pa.scalar("a row of the given plan"), given.num_rows)
    plan = sampled_rows(ctx, config.sample, given.column("problem_id"), reasons)
    columns = {name: one_array(given.column(name)) for name in _OF_GIVEN if name in given.column_names}
    if ctx.inputs.get("hints"):
        columns |= with_hints(given, ctx.table("hints"))
    named = wave_rows(plan, columns, plan.slice(0, 0), round_index=ctx.round, wave=0, call=0, seed=ctx.seed)
    plan = named.drop_columns(["plan_id", "wave", "call"])
    ctx.out.write_table(plan)
    ctx.beat(1.0, f"{plan.num_rows} rows of the given plan")
    chosen = pool.table.take(pa.array(positions(plan.column("problem_id"), pool.table.column("problem_id"))))
    hinted_rows = int((ints(plan.column("hint_level")) > 0).sum())
    notes: dict[str, object] = {"hinted": hinted_rows} if hinted_rows else {}
    return _result(pool, chosen, plan, Selection(np.zeros(pool.num_rows, np.int64), ()), {}, notes)


def sampled_rows(
    ctx: StageContext, sample: SampleConfig, problem_ids: Column, reasons: Column, hints: pa.Table | None = None
) -> pa.Table:
    """Return the plan rows of problems in this round, each sampled as `sample` says."""
    how = sample.model_dump()  # n, temperature, max_tokens
    return plan_rows(problem_ids, reasons=reasons, round_index=ctx.round, seed=ctx.seed, hints=hints, **how)


def _hints(ctx: StageContext, problem_ids: Column, config: CurateConfig) -> tuple[pa.Table | None, dict[str, object]]:
    """Return the hints that planned problems are shown, and what the summary says of them; None without a level.

    Raise GateError if no problem has a hint of the level.
    """
    if not config.shows_hints:
        return None, {}
    chosen = np.zeros(len(problem_ids), dtype=np.bool_)
    rng = np.random.default_rng(derive_seed(ctx.seed, "curate", ctx.round, "hinted"))
    chosen[rng.permutation(len(chosen))[: round(config.hinted_frac * len(chosen))]] = True
    found, without = hinted(ctx.table("hints"), config.hint_level, problem_ids, chosen)
    num = int((ints(found.column("hint_level")) > 0).sum())
    if chosen.any() and not num:
        causes = "; ".join(f"{reason}: {count}" for reason, count in without.items())
        raise GateError(
            f"curate.hint_level = {config.hint_level}, and none of {int(chosen.sum())} planned problems has the hint "
            f"({causes})",
            hint="levels count hint.fractions from 1; hints need worked solutions",
        )
    return found, {"hinted": num, **({"unhinted": without} if without else {})}


def pool_of(ctx: StageContext, columns: Sequence[str] | None, prompt: PromptConfig | None) -> Candidates:
    """Return the problems with their measurements, and the tokens of their prompts if a prompt is given.

    If the stage has evaluated problems, the column `contaminated` says which share text with one of them.
    """
    problems = ctx.table("problems", columns)
    if prompt is not None and ctx.inputs.get("policy"):
        lengths = prompt_lengths(ctx.store.path(ctx.one("policy")), problems.to_pylist(), prompt)
        problems = problems.append_column(PROMPT_TOKENS, pa.array(lengths, pa.int64()))
    if ctx.inputs.get("evaluated"):
        problems = problems.append_column(CONTAMINATED, _contaminated(ctx, problems))
    return candidates(problems, ctx.table("difficulty") if ctx.inputs.get("difficulty") else None)


class _Compared(dict[tuple[Ref, ...], pa.Array]):
    """The result for the problems that were last compared with evaluated ones, which takes minutes for a million."""


def _contaminated(ctx: StageContext, problems: pa.Table) -> pa.Array:
    """Return 1 for each problem that shares text with an evaluated one, else 0."""
    last, refs = ctx.warm.of(_Compared), (*ctx.inputs["problems"], *ctx.inputs["evaluated"])
    if refs not in last:
        evaluated = texts_of(ctx.table("evaluated", ("question", "messages")))
        shared = contaminated(texts_of(problems), evaluated)
        last.clear()
        last[refs] = pa.array(shared.astype(np.int64))
    return last[refs]


def _columns(config: CurateConfig) -> Sequence[str] | None:
    """Return the columns of problems that the components read; None for all of them."""
    needs = [chosen.needs for chosen in chosen_in(config)]
    return None if None in needs else round_columns((), needs, tracked=config.tracked)["problems"]


def _reading(chosen: Chosen) -> Callable[..., Any]:
    """Return a component that sees the columns which it declares, all if it declares none."""
    function, name = load(chosen), f"{chosen.kind} {chosen.label}"

    def read(pool: Rows, *arguments: Any) -> Any:
        return function(pool.reading(chosen.needs, name), *arguments)

    return read


def choose(
    pool: Candidates, config: CurateConfig, seed: int
) -> tuple[Ints, Column, Selection, dict[str, int], dict[str, object]]:
    """Filter, rank, cut and draw; return the rows taken, in plan order, and the reason of each, (T,) both.

    With them the verdict of the filters, the reasons of all rows that are not taken, and equal ranks.
    """
    verdict = apply_filters(pool, [_reading(chosen) for chosen in config.filters])
    reasons = verdict.counts()
    index, why, values = _ranked(pool, verdict.kept, config)
    ties = _ties(values, config)
    if config.top and len(index) > config.top:
        reasons[f"top: below the first {config.top}"] = len(index) - config.top
        index, why = index[: config.top], why[: config.top]
    taken, why = _drawn(pool, index, why, config, seed)
    if len(taken) < len(index):
        reasons[f"{config.sampler.label}: not drawn"] = len(index) - len(taken)
    return taken, why, verdict, reasons, ties


def _unmeasured(ctx: StageContext, pool: Candidates, config: CurateConfig) -> dict[str, object]:
    """Return the number of problems that filters on pass rates kept because none is known; nothing if one is."""
    filters = any(chosen.name in ("pass_rate", "zero_variance", "group_variance") for chosen in config.filters)
    unknown = np.isnan(pool["pass_rate"]).all()
    return {"unmeasured": pool.num_rows} if filters and unknown and ctx.inputs.get("difficulty") else {}


def _ties(values: Floats, config: CurateConfig) -> dict[str, object]:
    """Return the number of problems that rank equal to the last that `top` keeps and are left out, by their ids alone.

    Nothing without a ranking, or if no problem is left out so.
    """
    if config.rank is None or not config.top or len(values) <= config.top:
        return {}
    last, below = np.round(values[config.top - 1], DECIMALS), np.round(values[config.top :], DECIMALS)
    equal = int((np.isnan(below) if np.isnan(last) else below == last).sum())
    value = "unknown" if np.isnan(last) else f"{last:.3g}"
    return {"tied_out": equal, "ranking": config.rank.label, "tied_value": value} if equal else {}


def _ranked(pool: Candidates, kept: Bools, config: CurateConfig) -> tuple[Ints, Column, Floats]:
    """Return kept rows in rank order, or in table order without a ranking, the reason and the value of each."""
    if config.rank is None:
        index = np.flatnonzero(kept)
        why = pa.repeat(pa.scalar("kept by the filters" if config.filters else "all problems"), len(index))
        return index, why, np.empty(0)
    order, scores = rank(pool, _reading(config.rank))
    index = order[kept[order]]
    places = pa.array(np.arange(1, len(index) + 1)).cast(pa.string())
    named = _decimals(scores[index])
    why = pc.binary_join_element_wise("rank ", places, f" by {config.rank.label} ", named, "")
    return index, why, scores[index]


def _drawn(pool: Candidates, index: Ints, why: Column, config: CurateConfig, seed: int) -> tuple[Ints, Column]:
    chosen = config.sampler
    draw: Draw = _reading(chosen)(pool.select(index), config.draw or len(index), np.random.default_rng(seed))
    place = why.take(pa.array(draw.index))
    if draw.in_order:
        return index[draw.index], place
    how = pc.if_else(pa.array(draw.explored), "drawn to explore", f"drawn by {chosen.label}")
    if config.rank is not None:
        how = pc.binary_join_element_wise(place, how, ", ")
    return index[draw.index], how


def _measured_text(chosen: pa.Table) -> Column:
    """`pass rate 3/8, variance 0.234`, `mean reward 0.412 of 8, variance 0.020` or `never measured` per row (N,).

    No Python string is made per row.
    """
    k, n, num = (one_array(chosen.column(name)).cast(pa.string()) for name in ("k", "n", "reward_n"))
    names = ("variance", "reward_mean", "reward_variance")
    variance, mean, reward_variance = (_decimals(floats(chosen.column(name))) for name in names)
    counts = pc.binary_join_element_wise("pass rate ", k, "/", n, ", variance ", variance, "")
    of = pc.fill_null(num, "an unknown number")
    graded = pc.binary_join_element_wise("mean reward ", mean, " of ", of, ", variance ", reward_variance, "")
    judged, rewarded = (one_array(chosen.column(name)).is_valid() for name in ("pass_rate", "reward_mean"))
    return pc.if_else(judged, counts, pc.if_else(rewarded, graded, "never measured"))


def _decimals(values: Floats) -> Column:
    """Numbers as text with three decimals (N,), those from 1e12 on as they are; `unknown` for NaN."""
    large = np.abs(values) >= 1e12
    thousandths = np.round(np.where(large, 0.0, np.nan_to_num(values)) * 1000).astype(np.int64)
    sign = pc.if_else(pa.array(thousandths < 0), "-", "")
    whole = pa.array(np.abs(thousandths) // 1000).cast(pa.string())
    rest = pc.utf8_lpad(pa.array(np.abs(thousandths) % 1000).cast(pa.string()), width=3, padding="0")
    text = pc.binary_join_element_wise(pc.binary_join_element_wise(sign, whole, ""), rest, ".")
    text = pc.if_else(pa.array(large), pa.array(values).cast(pa.string()), text)
    return pc.if_else(pa.array(np.isnan(values)), "unknown", text)


def _result(
    pool: Candidates,
    chosen: pa.Table,
    plan: pa.Table,
    verdict: Selection,
    reasons: dict[str, int],
    notes: dict[str, object],
) -> StageResult:
    kept, total = plan.num_rows, pool.num_rows
    rate = floats(chosen.column("pass_rate"))
    metrics = {"data/kept_frac": float(verdict.kept.mean()), "data/planned_frac": kept / total}
    if "hinted" in notes:
        metrics["data/planned_hinted_frac"] = float((ints(plan.column("hint_level")) > 0).mean())
    if not np.isnan(rate).all():
        metrics["data/planned_pass_rate_mean"] = float(np.nanmean(rate))
    return StageResult(
        metrics=metrics,
        summary={
            "kept": kept,
            "dropped": total - kept,
            "reasons": reasons,
            "problem_ids": plan.column("problem_id").slice(0, _NUM_IDS).to_pylist(),
            **notes,
        },
        samples=_samples(pool, chosen, plan, verdict),
    )


def _samples(pool: Candidates, chosen: pa.Table, plan: pa.Table, verdict: Selection) -> Sequence[Sample]:
    questions = chosen.column("question").slice(0, _NUM_PLANNED).to_pylist()
    planned = plan.select(["problem_id", "reason"]).slice(0, _NUM_PLANNED).to_pylist()
    rows = [{**row, "planned": True, "question": question} for row, question in zip(planned, questions, strict=True)]
    refused = pa.array(np.flatnonzero(~verdict.kept)[:_NUM_DROPPED])
    dropped = pool.table.select(["problem_id", "question"]).take(refused).to_pylist()
    why = verdict.reasons.take(refused).to_pylist()
    return rows + [
        {"problem_id": row["problem_id"], "reason": reason, "planned": False, "question": row["question"]}
        for row, reason in zip(dropped, why, strict=True)
    ]
