"""Stage evaluate: judged rollouts of one policy on one problem set become pass@k, maj@k and lengths with intervals.

Roles: problems, rollouts, scores; baseline (optional): the evaluations of another checkpoint on the same problems,
for the gain, paired by problem; batch (optional): what the shapes of a suite took, which is then evaluated.
Rollouts without a verdict are not part of pass@k and maj@k; the share that has
one is the coverage, and too small a share breaches the gate. A problem with fewer judged rollouts than k is left out of
pass@k and counted in the summary; a k that no problem reaches for want of verdicts is left out, for want of rollouts an
error. The mean reward is that of every rollout with a reward, judged or not.
"""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from gradus.data.answers import answer_key
from gradus.data.arrays import (
    Bools,
    Floats,
    Ints,
    bools,
    codes,
    floats,
    ints,
    looked_up,
    nulls,
    one_array,
    pc,
    positions,
    take_or_null,
)
from gradus.data.curation.batch import REASON, TAKEN, UNJUDGED
from gradus.data.curation.grading import summarise
from gradus.data.errors import BadInputError, GateError
from gradus.data.intervals import mean_of, share_interval
from gradus.data.lake.schema import EVALUATIONS, cast_to_schema
from gradus.data.metrics import majority_at_k, pass_at_k
from gradus.data.records import Figure
from gradus.tasks.config.score import EvaluateConfig
from gradus.tasks.runs.records import DomainFigures, Evaluation, EvaluationFigures, Metrics, Sample, Versus
from gradus.tasks.stages.context import NUM_SAMPLES, StageContext, StageResult
from gradus.tasks.stages.score.rewards import NUM_NAMED, coverage

_ROLLOUT_COLUMNS = ["rollout_id", "problem_id", "sample", "completion", "completion_tokens", "hint_level", "policy"]


@dataclass(frozen=True)
class _Rollouts:
    """Rollouts, each (N,): row of its problem, place, code of its answer (-1: none), and the fields of its score.

    `judged` is whether there is a verdict; reward and length in tokens are NaN if unknown.
    """

    problem: Ints
    sample: Ints
    answer: Ints
    judged: Bools
    correct: Bools
    reward: Floats
    tokens: Floats

    def where(self, use: Bools) -> "_Rollouts":
        """Return some of the rollouts."""
        return _Rollouts(*(values[use] for values in vars(self).values()))


def run(ctx: StageContext, config: EvaluateConfig) -> StageResult:
    """Compute one row per problem and the figures of all.

    Raises BadInputError for rollouts of other problems, of several policies, with hints, or too few for a k, and for a
    baseline that shares no problem; GateError if no rollout has a verdict or a reward.
    """
    ctx.beat(0.0, "reading rollouts and scores")
    problems = ctx.table("problems", ["problem_id", "question", "domain"])
    rollouts = ctx.table("rollouts", _ROLLOUT_COLUMNS)
    scores = ctx.table("scores", ["rollout_id", "correct", "extracted", "reward"])
    if ctx.inputs.get("batch"):
        rollouts = _taken(rollouts, scores, ctx.table("batch", ["rollout_id", TAKEN, REASON]))
    every = _evaluated(problems, rollouts, scores)
    if max(config.ks) > (most := int(np.bincount(every.problem).max())):
        k = next(k for k in config.ks if k > most)
        raise BadInputError(
            f"pass@{k} needs {k} judged rollouts of a problem, the most that one has is {most}",
            hint="sample more, or ask for a smaller k",
        )
    suite = str(ctx.facts.get("suite", "heldout"))
    policies = pc.unique(rollouts.column("policy").drop_null()).to_pylist()
    if len(policies) > 1:
        raise BadInputError(f"the rollouts come from {len(policies)} policies", hint="evaluate each policy alone")
    table = _rows(problems, every, checkpoint=policies[0] if policies else "unknown", suite=suite)
    ctx.out.write_table(table)
    ctx.beat(0.4, f"intervals over {table.num_rows} problems")
    report = _Report(table, every.where(every.judged), config, suite)
    baseline = ctx.table("baseline") if ctx.inputs.get("baseline") else None
    unjudged, failed = ~every.judged, ~every.judged & np.isnan(every.reward)
    named = rollouts.column("rollout_id").filter(pa.array(unjudged)).slice(0, NUM_NAMED).to_pylist()
    summary: Evaluation = {
        **report.summary(baseline),
        **coverage(len(unjudged), int(unjudged.sum()), int(failed.sum()), named),
    }
    ctx.beat(1.0, "evaluated")
    return StageResult(metrics=_metrics(suite, summary), summary=summary, samples=_samples(problems, rollouts, scores))


class _Report:
    """The numbers of one evaluation with their intervals over problems.

    Intervals are over problems, not completions: the completions of one problem are not independent of each other.
    """

    def __init__(self, table: pa.Table, judged: _Rollouts, config: EvaluateConfig, suite: str) -> None:
        self.table = table
        self.n, self.k = ints(table.column("n")), ints(table.column("k"))
        self.reward_mean = floats(table.column("reward_mean"))
        self._judged = judged
        self._config = config
        self._suite = suite

    def summary(self, baseline: pa.Table | None) -> EvaluationFigures:
        """Return all figures by name; pass@k and maj@k for each k that a problem has judged rollouts for.

        maj@k is left out if the reward read no answer from any completion: there is nothing to vote with.
        """
        ks = [k for k in self._config.ks if (self.n >= k).any()]
        rewarded, tokens = ~np.isnan(self.reward_mean), floats(self.table.column("mean_tokens"))
        found: EvaluationFigures = {
            "suite": self._suite,
            "rows": self.table.num_rows,
            "pass_at": {str(k): self.pass_at(k) for k in ks},
            "fewer_samples_than": {str(k): int((self.n < k).sum()) for k in self._config.ks if (self.n < k).any()},
            "mean_tokens": None if np.isnan(tokens).all() else float(np.nanmean(tokens)),
            "per_domain": self.per_domain(baseline),
        }
        if (self._judged.answer >= 0).any():
            found["maj_at"] = {str(k): self.maj_at(k) for k in ks}
        if rewarded.any():
            means = self.reward_mean[rewarded]  # those from 0 to 1 are shares
            found["reward_mean"] = (self._share if ((means >= 0) & (means <= 1)).all() else self._mean)(means)
        if baseline is not None:
            found["versus"] = self.against(baseline)
        return found

    def pass_at(self, k: int) -> Figure:
        """pass@k over the problems of at least k judged rollouts."""
        enough = self.n >= k
        return self._share(pass_at_k(self.n[enough], self.k[enough], k))

    def maj_at(self, k: int) -> Figure:
        """maj@k over the same problems."""
        j = self._judged
        share = majority_at_k(j.problem, j.sample, j.answer, j.correct, num_problems=len(self.n), k=k)
        return self._share(share[self.n >= k])

    def per_domain(self, baseline: pa.Table | None) -> dict[str, DomainFigures]:
        """pass@1 of every domain, sorted by name, with its gain where there is a baseline."""
        rate = _rate(self.n, self.k)
        difference = rate - self._before(baseline)[0] if baseline is not None else np.full(len(rate), np.nan)
        domain, names = codes(self.table.column("domain"))
        found: dict[str, DomainFigures] = {}
        for name, code in sorted((name, code) for code, name in enumerate(names.to_pylist()) if name is not None):
            here = (domain == code) & (self.n > 0)
            if not here.any():
                continue
            passed = self._share(rate[here])
            low, high, n = passed["low"], passed["high"], int(here.sum())
            found[name] = {"pass_at_1": passed["value"], "low": low, "high": high, "n": n}
            if (both := here & ~np.isnan(difference)).any():
                found[name]["gain"] = self._mean(difference[both])
        return found

    def against(self, baseline: pa.Table) -> Versus:
        """Gain of pass@1, of each pass@k and of the mean reward over the problems that both evaluated.

        Beside it what was newly solved and lost. A gain that one side has no verdicts, or rewards, for is left out.
        """
        before_rate, before_n, before_k = self._before(baseline)
        both = (self.n > 0) & (before_n > 0)
        change = self.reward_mean - self._of(baseline, "reward_mean")
        rewarded = ~np.isnan(change)
        if not (both | rewarded).any():
            raise BadInputError(
                "the baseline shares no judged problem with this evaluation",
                hint="evaluate both checkpoints on the same problems",
            )
        found: Versus = {
            "baseline": baseline.column("checkpoint")[0].as_py(),
            "problems": int(both.sum()),
            "gain_at": {},
            "newly_solved": int((both & (before_k == 0) & (self.k > 0)).sum()),
            "newly_lost": int((both & (before_k > 0) & (self.k == 0)).sum()),
        }
        for k in self._config.ks:
            if (enough := (self.n >= k) & (before_n >= k)).any():
                after = pass_at_k(self.n[enough], self.k[enough], k)
                found["gain_at"][str(k)] = self._mean(after - pass_at_k(before_n[enough], before_k[enough], k))
        if both.any():
            found["gain"] = self._mean((_rate(self.n, self.k) - before_rate)[both])
        if rewarded.any():
            found["reward_gain"] = self._mean(change[rewarded])
        return found

    def _before(self, baseline: pa.Table) -> tuple[Floats, Ints, Ints]:
        """Rate, n and k of the baseline for each problem here; n = 0 and NaN where it has none."""
        if len(pc.unique(baseline.column("checkpoint"))) > 1 or len(pc.unique(baseline.column("suite"))) > 1:
            raise BadInputError("the baseline holds several evaluations", hint="give one checkpoint on one suite")
        n, k = (np.nan_to_num(self._of(baseline, name)).astype(np.int64) for name in ("n", "k"))
        return _rate(n, k), n, k

    def _of(self, baseline: pa.Table, name: str) -> Floats:
        """A column of the baseline for each problem here; NaN if it has none."""
        at = positions(self.table.column("problem_id"), baseline.column("problem_id"))
        return floats(take_or_null(baseline.column(name), at))

    def _share(self, values: Floats) -> Figure:
        return share_interval(values[None], self._config.confidence)

    def _mean(self, values: Floats) -> Figure:
        return mean_of(values[None], span=max(1.0, float(np.abs(values).max()))).interval(self._config.confidence)


def _taken(rollouts: pa.Table, scores: pa.Table, batch: pa.Table) -> pa.Table:
    """Return the rollouts that a suite's shapes took; one that was left out as nothing judged it counts as unjudged."""
    at, judged = (positions(rollouts.column("rollout_id"), each.column("rollout_id")) for each in (batch, scores))
    unjudged = bools(pc.equal(take_or_null(batch.column(REASON), at), UNJUDGED))
    unjudged &= nulls(take_or_null(scores.column("reward"), judged))
    found = rollouts.filter(pa.array(bools(take_or_null(batch.column(TAKEN), at)) | unjudged))
    if not found.num_rows:
        raise GateError(
            f"the shapes of the suite take none of {rollouts.num_rows} rollouts", hint="loosen them, or leave one out"
        )
    return found


def _evaluated(problems: pa.Table, rollouts: pa.Table, scores: pa.Table) -> _Rollouts:
    """The rollouts with what their scores say; refused if they cannot be evaluated."""
    problem = positions(rollouts.column("problem_id"), problems.column("problem_id"))
    _refuse(rollouts, problem < 0, "answers a problem that is not in the problems table")
    _refuse(rollouts, ints(rollouts.column("hint_level")) > 0, "saw a hint, and evaluation is of bare problems")
    at = positions(rollouts.column("rollout_id"), scores.column("rollout_id"))
    verdict, answers, reward = (take_or_null(scores.column(c), at) for c in ("correct", "extracted", "reward"))
    if nulls(verdict).all() and nulls(reward).all():
        raise GateError(
            f"none of {rollouts.num_rows} rollouts has a verdict or a reward",
            hint="score them with a reward that judges correctness (math, numeric, exact)",
        )
    place = ints(rollouts.column("sample"), null=-1)
    return _Rollouts(
        problem=problem,
        sample=np.where(place < 0, np.arange(len(place)), place),
        answer=np.where(nulls(answers), -1, codes(_keys(answers))[0]),
        judged=~nulls(verdict),
        correct=bools(verdict),
        reward=floats(reward),
        tokens=floats(pc.list_value_length(rollouts.column("completion_tokens"))),
    )


def _keys(answers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return answers as they are counted for maj@k."""
    written = answers.unique()
    keys = pa.array([answer_key(text) for text in written.to_pylist()], pa.string())
    return take_or_null(pa.chunked_array([keys]), positions(answers, pa.chunked_array([written])))


def _refuse(rollouts: pa.Table, bad: Bools, what: str) -> None:
    if bad.any():
        row = rollouts.slice(int(np.argmax(bad)), 1).select(["rollout_id", "problem_id"]).to_pylist()[0]
        raise BadInputError(
            f"rollout {row['rollout_id']!r} of problem {row['problem_id']!r} {what} ({int(bad.sum())} such rollouts)",
            hint="evaluate rollouts of these problems, without hints",
        )


def _rows(problems: pa.Table, every: _Rollouts, *, checkpoint: str, suite: str) -> pa.Table:
    """The evaluations table: one row per problem, n = 0 where it has no judged rollout.

    `majority_correct` takes all samples; a tie of a right answer with a wrong one is not a right majority.
    """
    num, judged = problems.num_rows, every.where(every.judged)
    count = partial(np.bincount, minlength=num)
    n, k = count(judged.problem), count(judged.problem[judged.correct])
    share = majority_at_k(judged.problem, judged.sample, judged.answer, judged.correct, num_problems=num, k=0)
    known = every.where((every.judged | ~np.isnan(every.reward)) & ~np.isnan(every.tokens))
    num_known = count(known.problem)
    tokens = count(known.problem, weights=known.tokens)
    grades = summarise(every.reward, every.problem, num_groups=num)
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
            "reward_n": grades.n,
            "reward_mean": pa.array(grades.mean, mask=grades.n == 0),
            "reward_variance": pa.array(grades.variance, mask=grades.n == 0),
        }
    )
    return cast_to_schema(table, EVALUATIONS)


def _rate(n: Ints, k: Ints) -> Floats:
    return np.divide(k, n, out=np.full(len(n), np.nan), where=n > 0)


def _metrics(suite: str, summary: Evaluation) -> Metrics:
    """The summary under the names of the tracker, which takes no other characters than these in a name."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", suite)
    values = {f"pass_at_{k}": interval["value"] for k, interval in summary["pass_at"].items()}
    values |= {f"maj_at_{k}": interval["value"] for k, interval in summary.get("maj_at", {}).items()}
    values["coverage"] = summary["coverage"]
    if (first := next(iter(summary["pass_at"].values()), None)) is not None:
        values |= {"ci_low": first["low"], "ci_high": first["high"]}
    if summary["mean_tokens"] is not None:
        values["mean_tokens"] = summary["mean_tokens"]
    values |= _ends("reward_mean", summary.get("reward_mean"))
    versus = summary.get("versus", {})
    values |= _ends("gain", versus.get("gain")) | _ends("reward_gain", versus.get("reward_gain"))
    if "gain" in versus:
        values["newly_solved"] = versus["newly_solved"]
    return {f"eval/{name}/{key}": float(value) for key, value in values.items()}


def _ends(name: str, interval: Figure | None) -> Metrics:
    """An interval as three metrics; none if there is no interval."""
    if interval is None:
        return {}
    return {name: interval["value"], f"{name}_ci_low": interval["low"], f"{name}_ci_high": interval["high"]}


def _samples(problems: pa.Table, rollouts: pa.Table, scores: pa.Table) -> list[Sample]:
    """Completions spread evenly over the set, with the answers read from them."""
    index = pa.array(np.unique(np.linspace(0, rollouts.num_rows - 1, NUM_SAMPLES).astype(np.int64)))
    shown = rollouts.select(["rollout_id", "problem_id", "completion"]).take(index)
    shown = looked_up(shown, "problem_id", problems, ["question"])
    return looked_up(shown, "rollout_id", scores, ["extracted", "correct"]).to_pylist()
