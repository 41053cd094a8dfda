"""The gates between stages, which their declarations name: functions of a stage's report and its limits.

The report keeps what limits are compared with, so that another limit computes nothing again. A stage may call its gate
earlier, with the part of the report that it already knows; figures that are missing breach nothing.
"""

import math
from collections.abc import Mapping
from typing import Any

from gradus.tasks.config.curation import DifficultyConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import EvaluateConfig, ScoreConfig
from gradus.tasks.host.processes import log_name
from gradus.tasks.runs.records import Report
from gradus.tasks.stages.score.rewards import WAYS_TO_A_VERDICT

BURST_ROWS = 128
"""More than the requests under way at once, which all see one short outage of a server."""


def without_signal(num_groups: int) -> str:
    """Return why no row of an update has a gradient: groups without variance, or none left by the shapes."""
    return f"all {num_groups} groups have rewards without variance" if num_groups else "shapes leave out every group"


def tolerated_in_a_row(max_frac: float, num_rows: int) -> int:
    """Return how many rows may fail one after another: what the limit on their share allows, and at least a burst."""
    return max(BURST_ROWS, math.floor(max_frac * num_rows))


def rollout_breach(report: Report, config: RolloutConfig) -> str:
    """Too many completions cut off by max_tokens, or too many requests that failed."""
    summary = report.get("summary", {})
    truncated = report.get("metrics", {}).get("length/truncated_frac", 0.0)
    if truncated > config.max_truncated_frac:
        return (
            f"{truncated:.1%} of the completions were cut off by max_tokens, more than max_truncated_frac = "
            f"{config.max_truncated_frac:.1%} (first: {', '.join(summary.get('first_truncated', ()))})"
        )
    num_failed, num_rows = summary.get("failed_requests", 0), summary.get("rows", 0)
    if num_failed > config.max_failed_frac * num_rows:
        return f"{num_failed} of {num_rows} requests failed, more than max_failed_frac = {config.max_failed_frac:g}"
    return ""


def score_breach(report: Report, config: ScoreConfig) -> str:
    """Too many rows that could not be judged."""
    summary = report.get("summary", {})
    num_rows, num_failed = summary.get("rows", 0), summary.get("error", 0) + summary.get("timeout", 0)
    if num_failed <= config.max_error_frac * num_rows:
        return ""
    own = " and ".join(log_name(reward.name) for reward in config.rewards if ".py:" in reward.name)
    return (
        f"{num_failed} of {num_rows} rows ({num_failed / num_rows:.1%}) could not be judged, more than "
        f"max_error_frac {config.max_error_frac:.1%} allows: {'; '.join(summary.get('first_failed', ()))}"
        f"{f' (what the reward printed is in the logs of the run: {own})' if own else ''}"
    )


def verdict_breach(report: Report, config: DifficultyConfig | EvaluateConfig) -> str:
    """Too many rollouts whose score has no verdict on correctness."""
    summary = report.get("summary", {})
    num_rollouts, num_unjudged, num_failed = (summary.get(key, 0) for key in ("rollouts", "unjudged", "failed"))
    if num_unjudged <= config.max_unjudged_frac * num_rollouts:
        return ""
    way = WAYS_TO_A_VERDICT if num_unjudged > num_failed else "see the column `error` of the scores"
    return (
        f"{num_unjudged} of {num_rollouts} rollouts ({num_unjudged / num_rollouts:.1%}) have no verdict on "
        f"correctness, more than max_unjudged_frac {config.max_unjudged_frac:.1%} allows: "
        f"{num_unjudged - num_failed} have a reward that makes no claim, {num_failed} could not be judged "
        f"(the first: {', '.join(summary.get('first_unjudged', ()))}); {way}"
    )


def update_breach(report: Mapping[str, Any], config: UpdateConfig) -> str:
    """Rollouts that are too old, too far from this policy, or too uniform."""
    metrics, summary = report.get("metrics", {}), report.get("summary", {})
    difference = metrics.get("mismatch/logp_diff_mean", 0.0)
    if difference > config.max_logp_diff:
        return (
            f"sampler and trainer disagree by {difference:.3f} nats a token on the same tokens, more than "
            f"max_logp_diff = {config.max_logp_diff:g} (most in rollout {summary.get('most_mismatched')})"
        )
    num_groups, num_uniform = summary.get("groups", 0), summary.get("zero_std_groups", 0)
    if num_uniform > config.max_zero_std_frac * num_groups:
        first = summary.get("first_zero_std")
        return (
            f"{num_uniform} of {num_groups} groups ({num_uniform / num_groups:.1%}) have rewards without variance, "
            f"more than max_zero_std_frac = {config.max_zero_std_frac:.1%} (first: that of {first})"
        )
    if summary.get("oldest_updates", 0) > config.max_age:
        return (
            f"rollouts are up to {summary['oldest_updates']} updates old, more than max_age = {config.max_age} "
            f"(first: {summary.get('oldest')})"
        )
    return ""
