"""What the stage `score` says of its rows: metrics, counts, readable samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradus.tasks.stages.score.verdicts import WAYS_TO_A_VERDICT

OUTCOMES = ("correct", "wrong", "unparsed", "timeout", "error")
FAILED = ("timeout", "error")
NUM_SAMPLES = 16
NUM_NAMED = 5
SAMPLE_CHARS = 4000


@dataclass(frozen=True)
class Judgement:
    """One rollout and its row of the scores table (components as a list of pairs)."""

    row: dict[str, Any]
    score: dict[str, Any]

    @property
    def failed(self) -> bool:
        """Whether it could not be judged."""
        return self.score["outcome"] in FAILED


def metrics(judged: Sequence[Judgement], components: Sequence[str]) -> dict[str, float]:
    """The metrics reward/* and verifier/*; one that has nothing to be computed from is left out.

    Groups are rollouts of one group_id (of one problem where a file has no groups). `frac_zero_std_groups` counts among
    groups with at least two judged rows, `frac_all_right` among groups whose rows make a claim about correctness.
    """
    rewards = [j.score["reward"] for j in judged if j.score["reward"] is not None]
    found = {"reward/mean": float(np.mean(rewards)), "reward/std": float(np.std(rewards))}
    for name in components:
        values = [value for j in judged for key, value in j.score["components"] if key == name]
        if values:
            found[f"reward/{name}"] = float(np.mean(values))
    counts = _counts(judged)
    for outcome in ("error", "timeout", "unparsed"):
        found[f"verifier/{outcome}_frac"] = counts[outcome] / len(judged)
    return {**found, **_group_metrics(judged)}


def clock(latencies_s: Sequence[float]) -> dict[str, float]:
    """The metric verifier/latency_p95_s, of the rows that this attempt judged itself."""
    return {"verifier/latency_p95_s": float(np.quantile(latencies_s, 0.95))} if latencies_s else {}


def summary(judged: Sequence[Judgement]) -> dict[str, Any]:
    """Rows by outcome and the mean reward; `unclaimed` rows have a reward and no verdict, `note` says what to do."""
    rewards = [j.score["reward"] for j in judged if j.score["reward"] is not None]
    counts = _counts(judged)
    unclaimed = len(judged) - sum(counts.values())
    found: dict[str, Any] = {
        "rows": len(judged),
        **counts,
        "unclaimed": unclaimed,
        "mean_reward": float(np.mean(rewards)) if rewards else None,
        "first_failed": [f"{plain(j.score['rollout_id'])}: {plain(j.score['error'])}" for j in judged if j.failed][
            :NUM_NAMED
        ],
    }
    if unclaimed:
        found["note"] = (
            f"{unclaimed} of {len(judged)} rows have a reward and no verdict: to have one, {WAYS_TO_A_VERDICT}"
        )
    return found


def samples(judged: Sequence[Judgement]) -> list[dict[str, Any]]:
    """At most sixteen rows to read: some that failed, the best and the worst."""
    failed = [j for j in judged if j.failed][: NUM_SAMPLES // 4]
    ranked = sorted((j for j in judged if j.score["reward"] is not None), key=lambda j: -j.score["reward"])
    room = NUM_SAMPLES - len(failed)
    if len(ranked) > room:
        ranked = ranked[: room - room // 2] + ranked[len(ranked) - room // 2 :]
    return [_sample(j) for j in (*ranked, *failed)]


def plain(text: str | None, max_chars: int = 200) -> str:
    """A hostile text as one printable line."""
    return "".join(c if c.isprintable() else " " for c in (text or "")[:max_chars]).strip()


def _counts(judged: Sequence[Judgement]) -> dict[str, int]:
    return {outcome: sum(j.score["outcome"] == outcome for j in judged) for outcome in OUTCOMES}


def _group_metrics(judged: Sequence[Judgement]) -> dict[str, float]:
    groups: dict[str, list[Judgement]] = {}
    for j in judged:
        groups.setdefault(str(j.row.get("group_id", j.row["problem_id"])), []).append(j)
    rewards = [[j.score["reward"] for j in group if j.score["reward"] is not None] for group in groups.values()]
    compared = [group for group in rewards if len(group) > 1]
    claims = [[j.score["correct"] for j in group if j.score["correct"] is not None] for group in groups.values()]
    claimed = [group for group in claims if group]
    found: dict[str, float] = {}
    if compared:
        found["reward/frac_zero_std_groups"] = sum(min(g) == max(g) for g in compared) / len(compared)
    if claimed:
        found["reward/frac_all_right"] = sum(map(all, claimed)) / len(claimed)
    return found


def _sample(j: Judgement) -> dict[str, Any]:
    shown = {name: j.row[name] for name in ("question", "hint_text", "completion", "answer") if name in j.row}
    shown = {name: value[-SAMPLE_CHARS:] if isinstance(value, str) else value for name, value in shown.items()}
    judged = {name: j.score[name] for name in ("rollout_id", "problem_id", "reward", "outcome", "extracted", "error")}
    return {**judged, **shown, "components": dict(j.score["components"])}
