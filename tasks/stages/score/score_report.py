"""Report of the stage `score`: metrics, counts, readable samples.

`rollouts` and `scores` are tables with a row for each rollout, in the same order; only rows that are shown become
Python objects.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints, bools, codes, floats, nulls, pc
from gradus.data.metrics import zero_std_groups
from gradus.models.rewards.base import Row
from gradus.tasks.runs.records import Sample
from gradus.tasks.stages.context import NUM_SAMPLES
from gradus.tasks.stages.score.rewards import WAYS_TO_A_VERDICT

OUTCOMES = ("correct", "wrong", "unparsed", "timeout", "error")
FAILED = ("timeout", "error")
NUM_NAMED = 5
SAMPLE_CHARS = 4000
SHOWN = ("question", "hint_text", "completion", "answer")
"""Columns of a rollout that a sample shows, where they are there."""
READ = ("rollout_id", "problem_id", "group_id", *SHOWN)
"""The columns of the rollouts that a report reads."""


def metrics(rollouts: pa.Table, scores: pa.Table, components: Sequence[str]) -> dict[str, float]:
    """Return the metrics reward/* and verifier/*; one that has nothing to be computed from is left out.

    Groups are rollouts of one group_id (of one problem where a file has no groups); `frac_all_right` counts among
    groups whose rows make a claim about correctness.
    """
    rewards = _rewards(scores)
    found = {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    for name in components:
        values = floats(pc.map_lookup(scores.column("components"), name, "first").drop_null())
        if len(values):
            found[f"reward/{name}"] = float(values.mean())
    counts = _counts(scores)
    for outcome in ("error", "timeout", "unparsed"):
        found[f"verifier/{outcome}_frac"] = counts[outcome] / scores.num_rows
    group, names = codes(pc.coalesce(rollouts.column("group_id"), rollouts.column("problem_id")))
    found["reward/frac_zero_std_groups"] = float(zero_std_groups(floats(scores.column("reward")), group).mean())
    claims = ~nulls(scores.column("correct"))
    num_claims = np.bincount(group[claims], minlength=len(names))
    num_right = np.bincount(group[claims & bools(scores.column("correct"))], minlength=len(names))
    claimed = num_claims > 0
    if claimed.any():
        found["reward/frac_all_right"] = float((num_right == num_claims)[claimed].mean())
    return found


def summary(scores: pa.Table) -> Mapping[str, object]:
    """Rows by outcome and the mean reward; `unclaimed` rows have a reward and no verdict, `note` says what to do."""
    rewards, counts = _rewards(scores), _counts(scores)
    num_rows = scores.num_rows
    unclaimed = num_rows - sum(counts.values())
    first_failed = scores.select(["rollout_id", "error"]).take(failed_rows(scores)[:NUM_NAMED]).to_pylist()
    found: dict[str, object] = {
        "rows": num_rows,
        **counts,
        "unclaimed": unclaimed,
        "mean_reward": float(rewards.mean()) if len(rewards) else None,
        "first_failed": [f"{plain(row['rollout_id'])}: {plain(row['error'])}" for row in first_failed],
    }
    if unclaimed:
        found["note"] = f"{unclaimed} of {num_rows} rows have a reward and no verdict: to have one, {WAYS_TO_A_VERDICT}"
    return found


def chosen(scores: pa.Table) -> Ints:
    """Return the rows to show, at most sixteen: the best and the worst, then some that failed."""
    failed = failed_rows(scores)[: NUM_SAMPLES // 4]
    rewards = floats(scores.column("reward"))
    judged = np.flatnonzero(~np.isnan(rewards))
    ranked = judged[np.argsort(-rewards[judged], kind="stable")]
    room = NUM_SAMPLES - len(failed)
    if len(ranked) > room:
        ranked = np.concatenate([ranked[: room - room // 2], ranked[len(ranked) - room // 2 :]])
    return np.concatenate([ranked, failed])


def sample(row: Row, score: Row) -> Sample:
    """Return one rollout and its row of the scores table for reading."""
    shown = {name: row[name] for name in SHOWN if name in row}
    shown = {name: value[-SAMPLE_CHARS:] if isinstance(value, str) else value for name, value in shown.items()}
    judged = {name: score[name] for name in ("rollout_id", "problem_id", "reward", "outcome", "extracted", "error")}
    return {**judged, **shown, "components": dict(score["components"])}


def plain(text: str | None, max_chars: int = 200) -> str:
    """A hostile text as one printable line."""
    return "".join(c if c.isprintable() else " " for c in (text or "")[:max_chars]).strip()


def _rewards(scores: pa.Table) -> Floats:
    return floats(scores.column("reward").drop_null())


def failed_rows(scores: pa.Table) -> Ints:
    """Return the rows that could not be judged."""
    return np.flatnonzero(bools(pc.is_in(scores.column("outcome"), value_set=pa.array(FAILED))))


def _counts(scores: pa.Table) -> dict[str, int]:
    found = {row["values"]: row["counts"] for row in pc.value_counts(scores.column("outcome")).to_pylist()}
    return {outcome: found.get(outcome, 0) for outcome in OUTCOMES}
