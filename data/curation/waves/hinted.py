"""Waves that show help to the problems that the policy fails."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.data.arrays import bools, nulls, pc
from gradus.data.curation.round import Planned, Round, first_rows

Level = Annotated[int, Ge(1), Le(1000)]


@component("wave", paper="arXiv 2507.10628", needs=("group", "correct", "hint_level", "hint_text", "hint"))
def escalate(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    levels: tuple[Level, ...] = (1, 2, 3),
) -> Planned | None:
    """Sample the groups whose every rollout failed again, with the hint of the next level (GHPO).

    GHPO (arXiv 2507.10628) shows a longer prefix of the solution while a group stays all wrong. One level a call, so
    that `times` is the number of levels. A group with a rollout that was not judged is left alone, and one whose next
    hint is missing, reveals the answer, or was already shown.

    Args:
        levels: Hint levels in their order.
    """
    if round.calls >= len(levels):
        return None
    level, rows, newest = levels[round.calls], round.rows, round.newest
    by, correct = rows.by("group"), rows["correct"]
    wrong = newest & (by.sum(np.where(correct == 1, 1.0, 0.0)) == 0)
    unjudged = by.sum(np.isnan(correct).astype(float)) > 0
    undecided, failed = first_rows(rows, wrong & unjudged), first_rows(rows, wrong & ~unjudged)
    texts, withheld = round.hint(failed, level)
    missing = nulls(texts)
    seen = bools(pc.equal(texts, rows.arrow("hint_text").take(failed)))
    again = ~missing & ~seen
    shown = rows["hint_level"][failed[again]]
    size = by.sum(np.ones(rows.num_rows))[failed[again]].astype(int)
    return round.plan(
        like=failed[again],
        hint_level=level,
        hint_text=texts.filter(again),
        reason=[
            f"all {n} wrong at hint level {int(before)}, shown hint level {level}"
            for n, before in zip(size, shown, strict=True)
        ],
        skipped={
            "not every rollout was judged": len(undecided),
            f"no hint of level {level}": int((missing & ~withheld).sum()),
            "the hint states the answer": int(withheld.sum()),
            "the hint was already shown": int(seen.sum()),
        },
    )
