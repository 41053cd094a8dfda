"""Every metric: what it is, who writes it, and where MLflow shows it.

    python -m gradus.tasks.tracking.metric_table > docs/metrics.md          # the page is generated

MLflow sorts charts by name, and a section is the name up to its last `/`. So a name begins with the number of its
section, a section has no parts, and what a metric was measured for (eval, profile, hints) stands behind the name.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from typing import Literal

MAX_ON_RUN = 60
"""Metrics on the run of a command; the rest are on the runs of its stages."""

EVERY_STAGE = "every stage"
REPORTER = "the reporter"

Kind = Literal["train", "eval", "suite", "profile", "wave"]
"""Purpose of a stage: a round's own training, the first suite, a further one, profiling, a wave or tracker, …"""


class Mark(Flag):
    """Marks of a metric."""

    STEP = auto()
    """Also measured for each optimiser step, on the run of the stage."""
    QUIET = auto()
    """Shown only after its first non-zero value."""
    COMPARES = auto()
    """Compares with the evaluation of the starting policy: an end value if a training evaluates only at its ends."""


_STEP, _QUIET, _COMPARES = Mark
_NO_MARKS = Mark(0)
_NO_KINDS: tuple[Kind, ...] = ()
_TRAIN: tuple[Kind, ...] = ("train",)
_EVAL: tuple[Kind, ...] = ("eval",)
_SUITES: tuple[Kind, ...] = ("eval", "suite")
_TRIES: tuple[Kind, ...] = ("train", "profile", "wave")


@dataclass(frozen=True)
class Section:
    """A section of charts, in the order of its number; `families` maps first parts of written names to prefixes."""

    title: str
    families: Mapping[str, str]
    doc: str


SECTIONS = (
    Section("1 eval", {"eval": ""}, "Whether the policy got better: evaluation on problems not trained on."),
    Section("2 reward", {"reward": ""}, "What the rewards of a round's rollouts were, and how much they differ."),
    Section(
        "3 policy",
        {"policy": "", "critic": "critic_", "sft": "sft_", "gradient": "gradient_"},
        "What the optimiser did.",
    ),
    Section("4 mismatch", {"mismatch": ""}, "How far the sampler's log-probs are from the trainer's, token by token."),
    Section("5 length", {"length": ""}, "How long completions are, in tokens."),
    Section("6 data", {"data": "", "batch": "batch_", "trained": "trained_"}, "Which problems and rows a round used."),
    Section("7 verifier", {"verifier": ""}, "How judging went."),
    Section("8 time", {"perf": ""}, "Where the time goes; the stage stands behind the name."),
    Section(
        "9 total", {"total": ""}, "What all commands of a run did and cost: written at the end of each, at step 0."
    ),
)
OWN_SECTION = "own"
"""Metrics of families that no section names."""


@dataclass(frozen=True)
class Metric:
    """One metric, or one for each value of the words in capitals in its name.

    `name` is what the stage writes (journal, SQL, guards); `on_run` says for which calls of its stage it is also on the
    run of the command, `on_run_of` restricts a metric of every stage to some.
    """

    name: str
    unit: str
    writer: str
    doc: str
    on_run: tuple[Kind, ...] = _NO_KINDS
    marks: Mark = _NO_MARKS
    on_run_of: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Return whether a recipe or a component decides how many such metrics there are."""
        return bool({"K", "COMPONENT", "OWN"} & set(_CAPITALS.findall(self.name)))

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages whose values are on the run of a command."""
        return self.on_run_of or tuple(self.writer.split(", "))

    @property
    def step(self) -> str:
        """Return the meaning of a point's step."""
        if self.writer == REPORTER:
            return "0"
        if Mark.COMPARES in self.marks:
            return "round; 0 if it is evaluated only before and after"
        return "round; optimiser step on the stage's run" if Mark.STEP in self.marks else "round"


METRICS: Sequence[Metric] = (
    Metric("eval/SUITE/pass_at_1", "share", "evaluate", "pass@1, unbiased; the mean over problems.", _SUITES),
    Metric("eval/SUITE/pass_at_K", "share", "evaluate", "pass@k, unbiased (arXiv 2107.03374), by k.", _EVAL),
    Metric("eval/SUITE/maj_at_K", "share", "evaluate", "Problems whose most frequent answer of k is right."),
    Metric("eval/SUITE/ci_low", "share", "evaluate", "Lower end of the interval of the first k.", _EVAL),
    Metric("eval/SUITE/ci_high", "share", "evaluate", "Upper end of the same interval.", _EVAL),
    Metric(
        "eval/SUITE/gain", "share", "evaluate", "pass@1 minus that of the starting policy, paired.", _SUITES, _COMPARES
    ),
    Metric("eval/SUITE/gain_ci_low", "share", "evaluate", "Lower end of its paired interval.", _EVAL, _COMPARES),
    Metric("eval/SUITE/gain_ci_high", "share", "evaluate", "Upper end of the same interval.", _EVAL, _COMPARES),
    Metric("eval/SUITE/newly_solved", "problems", "evaluate", "Solved now and never at the start.", _EVAL, _COMPARES),
    Metric("eval/SUITE/mean_tokens", "tokens", "evaluate", "Mean length of a completion.", _EVAL),
    Metric("eval/SUITE/coverage", "share", "evaluate", "Rollouts with a verdict on correctness."),
    Metric("eval/SUITE/reward_mean", "reward", "evaluate", "Mean reward of the rollouts, judged or not."),
    Metric("eval/SUITE/reward_mean_ci_low", "reward", "evaluate", "Lower end of its interval."),
    Metric("eval/SUITE/reward_mean_ci_high", "reward", "evaluate", "Upper end of the same interval."),
    Metric("eval/SUITE/reward_gain", "reward", "evaluate", "Mean reward less the starting policy's.", marks=_COMPARES),
    Metric("eval/SUITE/reward_gain_ci_low", "reward", "evaluate", "Lower end of its paired interval.", marks=_COMPARES),
    Metric("eval/SUITE/reward_gain_ci_high", "reward", "evaluate", "Upper end of the same interval.", marks=_COMPARES),
    Metric("reward/mean", "reward", "score", "Mean reward of the rollouts with one.", _TRIES),
    Metric("reward/std", "reward", "score", "Standard deviation of the same rewards (ddof 0).", _TRAIN),
    Metric("reward/frac_zero_std_groups", "share", "score", "Groups whose rewards are all equal.", _TRAIN),
    Metric("reward/frac_all_right", "share", "score", "Groups with a verdict whose every rollout is right.", _TRAIN),
    Metric("reward/COMPONENT", "reward", "score", "Mean of one component of the reward.", _TRAIN),
    Metric("policy/loss", "nats", "update", "Loss of an optimiser step, all terms.", _TRAIN, _STEP),
    Metric("policy/entropy", "nats", "update", "Mean entropy of a token's distribution.", _TRAIN, _STEP),
    Metric("policy/kl_old", "nats", "update", "KL to the policy before the update (k3).", _TRAIN, _STEP | _QUIET),
    Metric("policy/kl_ref", "nats", "update", "KL to the reference policy (k3), if one is used.", _TRAIN, _STEP),
    Metric("policy/clip_frac_low", "share", "update", "Tokens clipped at the lower bound.", _TRAIN, _STEP | _QUIET),
    Metric("policy/clip_frac_high", "share", "update", "Tokens clipped at the upper bound.", _TRAIN, _STEP | _QUIET),
    Metric("policy/grad_norm", "norm", "update", "Gradient norm before clipping.", _TRAIN, _STEP),
    Metric("policy/lr", "1", "update", "Learning rate.", _TRAIN, _STEP),
    Metric("policy/ratio_mean", "1", "update", "Mean ratio of the policy to that before the update.", marks=_STEP),
    Metric("policy/ratio_max", "1", "update", "Largest such ratio.", marks=_STEP),
    Metric("policy/advantage_abs", "1", "update", "Mean absolute advantage of a token.", marks=_STEP),
    Metric("policy/OWN", "", "update", "A metric of a loss, or of weights of tokens.", _TRAIN, _STEP),
    Metric("critic/loss", "reward²", "update", "Loss of the critic.", marks=_STEP),
    Metric("critic/grad_norm", "norm", "update", "Gradient norm of the critic before clipping.", marks=_STEP),
    Metric("critic/explained_variance", "share", "update", "Variance of the returns it explains.", marks=_STEP),
    Metric("sft/loss", "nats", "warmstart", "Cross entropy of a token of the worked solutions.", marks=_STEP),
    Metric("gradient/norm", "1", "gradient", "Norm of the gradient of a method on stored rows, no step taken."),
    Metric("gradient/signal_to_noise", "1", "gradient", "4 <a, b> / |a - b|^2 of its halves; below 0: noise."),
    Metric("gradient/half_cosine", "1", "gradient", "Cosine of the gradients of two halves of the groups."),
    Metric("gradient/tokens_frac", "share", "gradient", "Tokens whose log-prob the objective pulls at."),
    Metric("gradient/masked_frac", "share", "gradient", "Mass of tokens that a weight or correction sets to 0."),
    Metric("gradient/clipped_frac", "share", "gradient", "Mass of the other tokens at which the loss is flat."),
    Metric("gradient/dead_groups_frac", "share", "gradient", "Groups that nothing pulls at."),
    Metric("gradient/held_out_right", "nats", "gradient", "Change of log p of right held-out completions by a step."),
    Metric("gradient/held_out_wrong", "nats", "gradient", "The same of wrong ones."),
    Metric("gradient/held_out_gain", "reward", "gradient", "First-order change of their mean reward by that step."),
    Metric("mismatch/kl", "nats", "update", "KL of sampler and trainer on the sampled tokens (k3).", _TRAIN),
    Metric("mismatch/ratio_mean", "1", "update", "Mean of exp(trainer - sampler)."),
    Metric("mismatch/ratio_max", "1", "update", "Largest such ratio.", _TRAIN),
    Metric("mismatch/logp_diff_mean", "nats", "update", "Mean absolute difference of the log-probs.", _TRAIN),
    Metric("mismatch/logp_diff_max", "nats", "update", "Largest such difference."),
    Metric("mismatch/masked_frac", "share", "update", "Tokens without two finite log-probs, left out."),
    Metric("length/mean", "tokens", "rollout", "Mean length of a completion.", ("train", "eval")),
    Metric("length/max", "tokens", "rollout", "Longest completion.", _TRAIN),
    Metric("length/truncated_frac", "share", "rollout", "Completions cut off by max_tokens.", _TRAIN, _QUIET),
    Metric(
        "data/pass_rate_mean", "share", "difficulty", "Mean pass rate of the problems measured in the round.", _TRAIN
    ),
    Metric("data/reward_variance_mean", "reward²", "difficulty", "Mean variance of their rewards, by problem."),
    Metric("data/fresh_frac", "share", "difficulty", "Problems measured in this round.", _TRAIN),
    Metric("data/rescued_problems", "problems", "difficulty", "Problems solved with help and never without."),
    Metric("data/help_tokens", "tokens", "difficulty", "Prompt tokens that help added, of problems asked both ways."),
    Metric("data/helped_accuracy", "share", "difficulty", "Right rollouts with help, of problems asked both ways."),
    Metric("data/unhelped_accuracy", "share", "difficulty", "Right rollouts without help, of the same problems."),
    Metric("data/kept_frac", "share", "curate", "Problems that the filters kept.", _TRAIN),
    Metric("data/planned_frac", "share", "curate", "Problems that are planned: kept, in the top and drawn."),
    Metric("data/planned_hinted_frac", "share", "curate", "Problems planned with a hint from the start."),
    Metric("data/planned_pass_rate_mean", "share", "curate", "Mean pass rate of the problems drawn."),
    Metric("data/hint_level_mean", "level", "rollout", "Mean hint level of the rollouts.", _TRAIN, _QUIET),
    Metric("data/wave_rollouts", "rollouts", "wave", "Rollouts that a wave asks for."),
    Metric("data/tracked_rows", "rows", "tracker", "Rows that a tracker keeps."),
    Metric("data/tracked_changed", "rows", "tracker", "Rows of a tracker that the round changed or added."),
    Metric("data/measured_rows", "rows", "measure", "Rows that a measure asked its model about."),
    Metric("data/ingested_frac", "share", "ingest", "Rows of the source that could be used."),
    Metric("data/hinted_frac", "share", "hint", "Problems with a hint."),
    Metric("data/age_mean", "updates", "update", "Mean updates since the rows were sampled.", _TRAIN, _QUIET),
    Metric("data/age_max", "updates", "update", "Largest age of a row."),
    Metric("batch/taken_frac", "share", "shape", "Rows of the round that the update learns from."),
    Metric("batch/reward_mean", "reward", "shape", "Mean reward of those rows, as shapes left it."),
    Metric("batch/OWN", "", "shape", "A metric of a shape.", _TRAIN),
    Metric("trained/reward_mean", "reward", "update", "Mean reward of the rows learnt from, hinted too.", _TRAIN),
    Metric("trained/reward_std", "reward", "update", "Standard deviation of the same rewards (ddof 0)."),
    Metric("trained/frac_zero_std_groups", "share", "update", "Groups learnt from of equal rewards.", _TRAIN),
    Metric("trained/frac_all_right", "share", "update", "Groups learnt from whose every row is right."),
    Metric("trained/length_mean", "tokens", "update", "Mean length of a row learnt from."),
    Metric("trained/length_max", "tokens", "update", "Longest row learnt from."),
    Metric("trained/truncated_frac", "share", "update", "Rows learnt from that were cut off by max_tokens."),
    Metric("trained/skipped_updates", "1", "update", "1 where no group had variance and no step was taken."),
    Metric("trained/hint_level_mean", "level", "update", "Mean hint level of the rows learnt from."),
    Metric("verifier/error_frac", "share", "score", "Rows whose reward raised an error.", _TRAIN, _QUIET),
    Metric("verifier/timeout_frac", "share", "score", "Rows whose reward took too long.", _TRAIN, _QUIET),
    Metric("verifier/unparsed_frac", "share", "score", "Completions in which no answer was found.", _TRAIN, _QUIET),
    Metric("verifier/latency_p95_s", "s", "score", "95th percentile of the time that judging a row took."),
    Metric(
        "perf/compute_s", "s", EVERY_STAGE, "Wall time of computing.", _TRAIN, on_run_of=("rollout", "score", "update")
    ),
    Metric("perf/cpu_s", "s", EVERY_STAGE, "CPU time of the process that computed, with its ended children."),
    Metric("perf/gpu_s", "s", EVERY_STAGE, "Wall time times the GPUs that its process sees; absent without one."),
    Metric("perf/tokens_per_s", "tokens/s", "rollout, update", "Tokens sampled, or trained on.", _TRAIN),
    Metric("perf/step_s", "s", "update", "Wall time of an optimiser step.", marks=_STEP),
    Metric("perf/memory_halvings", "1", "update", "How often memory ran out and packs were halved."),
    Metric("total/rounds", "rounds", REPORTER, "Last round that has an update.", _TRAIN),
    Metric("total/tokens_sampled", "tokens", REPORTER, "Tokens that its commands generated, for any purpose.", _TRAIN),
    Metric("total/tokens_trained", "tokens", REPORTER, "Tokens that its updates learnt from.", _TRAIN),
    Metric("total/skipped_updates", "1", REPORTER, "Its updates that had no signal.", _TRAIN),
    Metric("total/cpu_s", "s", REPORTER, "CPU time of its stages, as in perf/cpu_s.", _TRAIN),
    Metric("total/gpu_s", "s", REPORTER, "GPU time of its stages, as in perf/gpu_s.", _TRAIN),
    Metric("total/cost", "the user's", REPORTER, "Both times GRADUS_CPU_PRICE and GRADUS_GPU_PRICE.", _TRAIN),
    Metric("total/num_not_finite", "values", REPORTER, "Values left out of the charts: NaN or infinite.", _TRAIN),
)
"""All metrics, section by section. COMPONENT and OWN stand for names that components choose."""

_CAPITALS = re.compile(r"\b[A-Z]+\b|(?<=_)[A-Z]+\b")


@cache
def find(name: str) -> Metric | None:
    """Return the entry of a written name; None if there is none.

    >>> find("eval/aime/pass_at_8").name, find("reward/numeric").name
    ('eval/SUITE/pass_at_K', 'reward/COMPONENT')
    """
    return next((metric for pattern, metric in _patterns() if pattern.fullmatch(name)), None)


def is_marked(name: str, mark: Mark) -> bool:
    """Return whether a written name is that of a metric with a mark."""
    metric = find(name)
    return metric is not None and mark in metric.marks


def section_of(name: str) -> tuple[str, str]:
    """Return the section of a written name and the name within it, which has no parts.

    >>> section_of("eval/aime/pass_at_8"), section_of("trained/reward_mean"), section_of("mine/a/b")
    (('1 eval', 'pass_at_8'), ('6 data', 'trained_reward_mean'), ('own', 'mine.a.b'))
    """
    family, _, rest = name.partition("/")
    if family == "eval" and "/" in rest:
        rest = rest.partition("/")[2]
        rest = f"pass_{rest}" if rest in ("ci_low", "ci_high") else rest  # beside the pass@k that they are of
    for section in SECTIONS:
        if rest and family in section.families:
            return section.title, f"{section.families[family]}{rest}".replace("/", ".")
    return OWN_SECTION, name.replace("/", ".")


@cache
def _patterns() -> Sequence[tuple[re.Pattern[str], Metric]]:
    """The entries with their patterns; a name with fewer words in capitals first, so that pass_at_1 is not pass_at_K.

    K stands for a number, SUITE for a part of a path, what components choose for anything.
    """
    values = {"K": "[0-9]+", "SUITE": "[^/]+"}
    found = sorted(METRICS, key=lambda metric: len(_CAPITALS.findall(metric.name)))
    return [(re.compile(_CAPITALS.sub(lambda word: values.get(word[0], ".+"), each.name)), each) for each in found]


def page() -> str:
    """Return the page of all metrics as Markdown, section by section."""
    parts = [_HEAD]
    for section in SECTIONS:
        rows = [metric for metric in METRICS if metric.name.partition("/")[0] in section.families]
        lines = "\n".join(map(_row, rows))
        parts.append(f"## {section.title}\n\n{section.doc}\n\n{_COLUMNS}\n{lines}\n")
    return "\n".join(parts)


_HEAD = f"""# Metrics

Generated from `tasks/tracking/metric_table.py`; a test compares them.

A stage writes a metric under its **written** name: so it is called in the report of an artifact, in `gradus sql` and in
guards. MLflow sorts charts by name and makes a section of what stands before the last `/`, so that **in MLflow** a name
begins with its section. What the metric was measured for stands behind the name: `2 reward/mean` is of the round's own
rollouts, `2 reward/mean.escalate1` of those that the wave `escalate` asked for first, `2 reward/mean.profile` of
profiling, `5 length/mean.eval` of the first evaluation suite, `1 eval/pass_at_1.aime` of the suite `aime`. Times have
their stage there: `8 time/compute_s.rollout`. On the run of one stage attempt nothing stands behind.

The run of a command shows the metrics marked *run*, at most {MAX_ON_RUN}; the others are on the runs of its stages. The
step is the round; what a stage says once, at its end, has the step 0 on its own run. A value that is NaN or infinite is
in no chart: `9 total/num_not_finite` counts them. A metric marked *unless 0* is on the run of a command if it was
anything but 0 there. Metrics of other names than these are in the section
`{OWN_SECTION}`.
"""
_COLUMNS = "| in MLflow | unit | meaning | written as | by | step | run |\n|---|---|---|---|---|---|---|"


def _row(metric: Metric) -> str:
    section, name = section_of(metric.name)
    on_run = ", ".join((*metric.on_run, *(f"of {stage}" for stage in metric.on_run_of))) or "-"
    on_run += "; unless 0" if Mark.QUIET in metric.marks else ""
    shown = f"{section}/{name}"
    unit, cells = metric.unit or "-", (metric.writer, metric.step, on_run)
    return f"| `{shown}` | {unit} | {metric.doc} | `{metric.name}` | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
