"""Shapes of rounds that begin with a probe."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradus.components import component
from gradus.data.curation.batch import BatchRows


@component("shape", paper="mail-research/SELF-llm-interference", needs=("temperature",))
def without_probe(rows: BatchRows) -> Mapping[str, Any]:
    """Leave greedy answers out, which say what to train on and are not trained on (SELF)."""
    return {"taken": rows["temperature"] > 0, "reason": "it is a greedy probe"}


@component("shape", paper="arXiv 2506.05316", needs=("wave",))
def without_first(rows: BatchRows) -> Mapping[str, Any]:
    """Leave out the round's first plan, which says what else to sample and is not trained on (DOTS)."""
    return {"taken": np.nan_to_num(rows["wave"]) > 0, "reason": "it is of the reference set"}


@component("shape", paper="arXiv 2310.10505", needs=("group", "reward", "origin"))
def remax(rows: BatchRows) -> Mapping[str, Any]:
    """Take the reward of the greedy answer from those of its group, and leave it out (ReMax).

    ReMax (arXiv 2310.10505): A = r - r of the most likely answer to the problem (the wave `greedy`), with the advantage
    `reward`, which takes rewards as they stand. Groups whose greedy answer has no reward are left out.
    """
    is_greedy = np.array([each == "greedy" for each in rows["origin"]], dtype=np.bool_)
    baseline, by = np.where(is_greedy, rows["reward"], np.nan), rows.by("group")
    known = by.count(baseline) > 0
    return {
        "reward": np.where(known, rows["reward"] - by.mean(baseline), np.nan),
        "taken": ~is_greedy & known,
        "reason": np.where(is_greedy, "it is the baseline of its group", "its group has no baseline"),
        "baseline": baseline,
    }


@component("shape", needs=("plan.measured",))
def without_measured(rows: BatchRows) -> Mapping[str, Any]:
    """Leave out the groups that the wave `measure_again` sampled to measure their problems."""
    asked = "plan.measured" in rows  # not in a round that measured none
    measured = rows["plan.measured"] == 1 if asked else np.zeros(rows.num_rows, dtype=np.bool_)
    return {"taken": ~measured, "reason": "sampled to measure its problem", "measured_frac": measured}
