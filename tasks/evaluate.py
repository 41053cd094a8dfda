"""Stage evaluate: judged rollouts of one policy on one problem set become pass@k, maj@k and lengths with intervals.

Roles: problems, rollouts, scores; baseline (optional): the evaluations of another checkpoint on the same problems,
which gives the gain, paired by problem. Rollouts without a verdict are not counted; a problem with fewer judged
rollouts than k is left out of pass@k and counted in the summary; that no problem has k of them is an error.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from data.arrays import Bools, Floats, Ints, bools, codes, floats, ints, nulls, one_array, pc, positions, take_or_null
from data.errors import BadInputError, GateError
from data.metrics import Interval, bootstrap_mean, majority_at_k, pass_at_k
from data.schema import EVALUATIONS, conform
from data.seeds import derive_seed
from tasks.config import EvaluateConfig
from tasks.context import StageContext, StageResult

_NUM_SAMPLES = 16
_ROLLOUT_COLUMNS = ["rollout_id", "problem_id", "sample", "completion", "completion_tokens", "hint_level", "policy"]


@dataclass(frozen=True)
class _Judged:
    """Judged rollouts, each (N,): row of its problem, its place, code of its answer (-1: none), verdict, length."""

    problem: Ints
    sample: Ints
    answer: Ints
    correct: Bools
    tokens: Floats


def run(ctx: StageContext, config: EvaluateConfig) -> StageResult:
    """Compute one row per problem and what they add up to.

    Raises BadInputError for rollouts of other problems, of several policies, with hints, or too few for a k, and for a
    baseline that shares no problem; GateError where no rollout was judged.
    """
    ctx.beat(0.0, "reading rollouts and scores")
    problems = ctx.table("problems", ["problem_id", "question", "domain"])
    rollouts = ctx.table("rollouts", _ROLLOUT_COLUMNS)
    scores = ctx.table("scores", ["rollout_id", "correct", "extracted"])
    judged, num_unjudged = _judge(problems, rollouts, scores)
    table = _rows(problems, judged, checkpoint=_checkpoint(rollouts), suite=config.suite)
    ctx.out.write_table(table)
    ctx.beat(0.4, f"intervals over {table.num_rows} problems")
    report = _Report(table, judged, config, ctx.seed)
    summary: dict[str, Any] = {
        "suite": config.suite,
        "rows": table.num_rows,
        "pass_at": {str(k): report.pass_at(k).as_dict() for k in config.ks},
        "maj_at": {str(k): report.maj_at(k).as_dict() for k in config.ks},
        "fewer_samples_than": {str(k): int((report.n < k).sum()) for k in config.ks if (report.n < k).any()},
        "unjudged": num_unjudged,
        "mean_tokens": _mean(table.column("mean_tokens")),
    }
    baseline = ctx.table("baseline") if ctx.inputs.get("baseline") else None
    summary["per_domain"] = report.per_domain(baseline)
    if baseline is not None:
        summary["versus"] = report.against(baseline)
    ctx.beat(1.0, "evaluated")
    return StageResult(
        metrics=_metrics(config.suite, summary), summary=summary, samples=_samples(problems, rollouts, scores)
    )


class _Report:
    """The numbers of one evaluation, every interval from its own generator, so that none depends on another."""

    def __init__(self, table: pa.Table, judged: _Judged, config: EvaluateConfig, seed: int) -> None:
        self.table = table
        self.n, self.k = ints(table.column("n")), ints(table.column("k"))
        self._judged = judged
        self._seed = seed
        self._config = config

    def pass_at(self, k: int) -> Interval:
        """pass@k over the problems of at least k judged rollouts."""
        enough = self._enough(k)
        return self._interval(f"pass@{k}", pass_at_k(self.n[enough], self.k[enough], k))

    def maj_at(self, k: int) -> Interval:
        """maj@k over the same problems."""
        j = self._judged
        share = majority_at_k(j.problem, j.sample, j.answer, j.correct, num_problems=len(self.n), k=k)
        return self._interval(f"maj@{k}", share[self._enough(k)])

    def per_domain(self, baseline: pa.Table | None) -> dict[str, Any]:
        """pass@1 of every domain, sorted by name, with its gain where there is a baseline."""
        rate = _rate(self.n, self.k)
        difference = rate - self._before(baseline)[0] if baseline is not None else np.full(len(rate), np.nan)
        domain, names = codes(self.table.column("domain"))
        found: dict[str, Any] = {}
        code_of = {name: code for code, name in enumerate(names.to_pylist()) if name is not None}
        for name in sorted(code_of):
            here = (domain == code_of[name]) & (self.n > 0)
            if not here.any():
                continue
            passed = self._interval(f"domain {name}", rate[here])
            found[name] = {"pass_at_1": passed.value, "low": passed.low, "high": passed.high, "n": int(here.sum())}
            both = here & ~np.isnan(difference)
            if both.any():
                found[name]["gain"] = self._interval(f"gain {name}", difference[both]).as_dict()
        return found

    def against(self, baseline: pa.Table) -> dict[str, Any]:
        """Gain of pass@1, and of each pass@k, over the problems that both evaluated; what was newly solved and lost."""
        before_rate, before_n, before_k = self._before(baseline)
        both = (self.n > 0) & (before_n > 0)
        if not both.any():
            raise BadInputError(
                "the baseline shares no judged problem with this evaluation",
                hint="evaluate both checkpoints on the same problems",
            )
        gain_at: dict[str, Any] = {}
        for k in self._config.ks:
            enough = (self.n >= k) & (before_n >= k)
            if enough.any():
                after = pass_at_k(self.n[enough], self.k[enough], k)
                change = after - pass_at_k(before_n[enough], before_k[enough], k)
                gain_at[str(k)] = self._interval(f"gain@{k}", change).as_dict()
        return {
            "baseline": baseline.column("checkpoint")[0].as_py(),
            "problems": int(both.sum()),
            "gain": self._interval("gain", (_rate(self.n, self.k) - before_rate)[both]).as_dict(),
            "gain_at": gain_at,
            "newly_solved": int((both & (before_k == 0) & (self.k > 0)).sum()),
            "newly_lost": int((both & (before_k > 0) & (self.k == 0)).sum()),
        }

    def _before(self, baseline: pa.Table) -> tuple[Floats, Ints, Ints]:
        """Rate, n and k of the baseline for each problem here; n = 0 and NaN where it has none."""
        if len(pc.unique(baseline.column("checkpoint"))) > 1 or len(pc.unique(baseline.column("suite"))) > 1:
            raise BadInputError("the baseline holds several evaluations", hint="give one checkpoint on one suite")
        at = positions(self.table.column("problem_id"), baseline.column("problem_id"))
        n, k = (ints(take_or_null(baseline.column(name), at)) for name in ("n", "k"))
        return _rate(n, k), n, k

    def _enough(self, k: int) -> Bools:
        enough = self.n >= k
        if not enough.any():
            raise BadInputError(
                f"pass@{k} needs {k} judged rollouts of a problem, the most that one has is {int(self.n.max())}",
                hint="sample more, or ask for a smaller k",
            )
        return enough

    def _interval(self, name: str, values: Floats) -> Interval:
        rng = np.random.default_rng(derive_seed(self._seed, self._config.suite, name))
        return bootstrap_mean(values, rng, resamples=self._config.bootstrap, confidence=self._config.confidence)


def _judge(problems: pa.Table, rollouts: pa.Table, scores: pa.Table) -> tuple[_Judged, int]:
    """The rollouts that have a verdict, and how many have none."""
    problem = positions(rollouts.column("problem_id"), problems.column("problem_id"))
    _refuse(rollouts, problem < 0, "answers a problem that is not in the problems table")
    _refuse(rollouts, ints(rollouts.column("hint_level")) > 0, "saw a hint, and evaluation is of bare problems")
    at = positions(rollouts.column("rollout_id"), scores.column("rollout_id"))
    verdict = take_or_null(scores.column("correct"), at)
    answers = take_or_null(scores.column("extracted"), at)
    use = ~nulls(verdict)
    if not use.any():
        raise GateError(
            f"none of {rollouts.num_rows} rollouts has a verdict",
            hint="score them with a reward that judges correctness (math, numeric, exact)",
        )
    answer = np.where(nulls(answers), -1, codes(answers)[0])
    place = ints(rollouts.column("sample"), null=-1)
    judged = _Judged(
        problem=problem[use],
        sample=np.where(place < 0, np.arange(len(place)), place)[use],
        answer=answer[use],
        correct=bools(verdict)[use],
        tokens=floats(pc.list_value_length(rollouts.column("completion_tokens")))[use],
    )
    return judged, int((~use).sum())


def _refuse(rollouts: pa.Table, bad: Bools, what: str) -> None:
    if bad.any():
        row = rollouts.slice(int(np.argmax(bad)), 1).select(["rollout_id", "problem_id"]).to_pylist()[0]
        raise BadInputError(
            f"rollout {row['rollout_id']!r} of problem {row['problem_id']!r} {what} ({int(bad.sum())} such rollouts)",
            hint="evaluate rollouts of these problems, without hints",
        )


def _checkpoint(rollouts: pa.Table) -> str:
    policies = pc.unique(rollouts.column("policy").drop_null()).to_pylist()
    if len(policies) > 1:
        raise BadInputError(f"the rollouts come from {len(policies)} policies", hint="evaluate each policy alone")
    return policies[0] if policies else "unknown"


def _rows(problems: pa.Table, judged: _Judged, *, checkpoint: str, suite: str) -> pa.Table:
    """The evaluations table: one row per problem, n = 0 where it has no judged rollout.

    `majority_correct` takes all samples; a tie of a right answer with a wrong one is not a right majority.
    """
    num = problems.num_rows
    count = partial(np.bincount, minlength=num)
    n, k = count(judged.problem), count(judged.problem[judged.correct])
    share = majority_at_k(judged.problem, judged.sample, judged.answer, judged.correct, num_problems=num, k=0)
    known = ~np.isnan(judged.tokens)
    num_known = count(judged.problem[known])
    tokens = count(judged.problem[known], weights=judged.tokens[known])
    table = pa.table(
        {
            "checkpoint": pa.repeat(checkpoint, num),
            "suite": pa.repeat(suite, num),
            "problem_id": one_array(problems.column("problem_id")),
            "domain": one_array(problems.column("domain")),
            "n": n,
            "k": k,
            "majority_correct": pa.array(share == 1.0, mask=n == 0),
            "mean_tokens": pa.array(tokens / np.maximum(num_known, 1), mask=num_known == 0),
        }
    )
    return conform(table, EVALUATIONS)


def _rate(n: Ints, k: Ints) -> Floats:
    return np.divide(k, n, out=np.full(len(n), np.nan), where=n > 0)


def _mean(column: Any) -> float | None:
    values = floats(column)
    return None if np.isnan(values).all() else float(np.nanmean(values))


def _metrics(suite: str, summary: dict[str, Any]) -> dict[str, float]:
    """The summary under the names of the tracker, which takes no other characters than these in a name."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", suite)
    values = {f"pass_at_{k}": interval["value"] for k, interval in summary["pass_at"].items()}
    values |= {f"maj_at_{k}": interval["value"] for k, interval in summary["maj_at"].items()}
    first = next(iter(summary["pass_at"].values()))
    values |= {"ci_low": first["low"], "ci_high": first["high"]}
    if summary["mean_tokens"] is not None:
        values["mean_tokens"] = summary["mean_tokens"]
    if "versus" in summary:
        gain = summary["versus"]["gain"]
        values |= {"gain": gain["value"], "gain_ci_low": gain["low"], "gain_ci_high": gain["high"]}
        values["newly_solved"] = summary["versus"]["newly_solved"]
    return {f"eval/{name}/{key}": float(value) for key, value in values.items()}


def _samples(problems: pa.Table, rollouts: pa.Table, scores: pa.Table) -> list[dict[str, Any]]:
    """Completions spread evenly over the set, with what was read from them."""
    index = pa.array(np.unique(np.linspace(0, rollouts.num_rows - 1, _NUM_SAMPLES).astype(np.int64)))
    shown = rollouts.select(["rollout_id", "problem_id", "completion"]).take(index)
    question = take_or_null(
        problems.column("question"), positions(shown.column("problem_id"), problems.column("problem_id"))
    )
    at = positions(shown.column("rollout_id"), scores.column("rollout_id"))
    shown = shown.append_column("question", question)
    for name in ("extracted", "correct"):
        shown = shown.append_column(name, take_or_null(scores.column(name), at))
    return shown.to_pylist()
