"""A tracker of the knowledge points that are enough for a problem."""

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.data.curation.round import Round
from gradus.data.curation.tracked import Tracked
from gradus.data.hints.points import smallest_enough


@component(
    "tracker",
    paper="KnowRL",
    by=("problem_id",),
    columns=("kept", "accuracy"),
    needs=("probe: problem_id", "probe: plan.subset", "probe: correct"),
)
def know_rl(
    before: Tracked,  # noqa: ARG001 - a problem is searched once
    round: Round,
    *,
    delta: Annotated[float, Ge(0.0), Le(1.0)] = 0.0,
) -> dict[str, Any]:
    """Keep the subset of knowledge points that is enough for a problem, and its accuracy (KnowRL).

    KnowRL, constrained subset search, see `smallest_enough`. A subset's accuracy is that of the rows of the use `probe`
    which the wave `knowledge_subsets` planned for it. The search rule is a guess: the authors' is not in their code.

    Args:
        delta: Accuracy that may be lost.
    """
    said = round.rows.others("probe")
    if not said.num_rows:
        return {"problem_id": [], "kept": [], "accuracy": []}
    judged = ~np.isnan(said["correct"])
    subset, right = said["plan.subset"][judged].astype(np.int64), said["correct"][judged]
    names, number = np.unique(said["problem_id"][judged].astype(str), return_inverse=True)
    found: dict[str, list[Any]] = {"problem_id": [], "kept": [], "accuracy": []}
    for at, name in enumerate(names):
        own = number == at
        accuracy = {int(each): float(right[own & (subset == each)].mean()) for each in np.unique(subset[own])}
        num = max(accuracy).bit_length()
        if 2**num - 1 in accuracy:
            kept = smallest_enough(accuracy, num, delta)
            found["problem_id"].append(name)
            found["kept"].append(float(kept))
            found["accuracy"].append(accuracy[kept])
    return found
