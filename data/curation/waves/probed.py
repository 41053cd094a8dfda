"""Waves after a probe: what the first answers of a round say decides which problems are sampled."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt

from gradus.components import component
from gradus.data.curation.round import Planned, Round, first_rows


@component("wave", paper="mail-research/SELF-llm-interference", needs=("group", "correct"))
def unsolved(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 8,
    temperature: Annotated[float, Gt(0.0)] = 1.0,
) -> Planned | None:
    """Sample the problems of which no answer so far is right, in groups of their own (SELF).

    SELF (The Reasoning Boundary Paradox) decodes every problem of a batch greedily, and trains on those alone whose
    most likely answer is wrong. The probe is the round's first plan, one answer at temperature 0 (`curate.sample`),
    which the shape `without_probe` leaves out.

    Args:
        n: Rollouts of a problem.
        temperature: Their temperature.
    """
    rows = round.rows
    right = rows.by("group").sum(np.where(rows["correct"] == 1, 1.0, 0.0)) > 0
    judged = ~np.isnan(rows["correct"])
    failed = first_rows(rows, ~right & judged)
    return round.plan(like=failed, n=n, temperature=temperature, reason="its most likely answer is wrong")
