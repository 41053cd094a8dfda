"""Trackers of how unlike each other the rollouts of a problem are."""

from typing import Any

import numpy as np

from gradus.components import component
from gradus.data.curation.round import Round, own_rows
from gradus.data.curation.shapes.answers import similarities
from gradus.data.curation.tracked import Tracked


@component(
    "tracker", paper="arXiv 2509.21268", columns=("dissimilarity",), needs=("problem_id", "completion", "origin")
)
def diversity(
    before: Tracked,  # noqa: ARG001 - only the newest rollouts count
    round: Round,
) -> dict[str, Any]:
    """Keep the mean dissimilarity of two rollouts of each problem, 0 to 1, when it was last sampled (MMR1).

    The trajectory diversity score of MMR1 (arXiv 2509.21268), which takes inverse self-BLEU or distinct n-grams.
    Deviation: the dissimilarity of two texts is one minus the cosine of their word counts. Given texts do not count,
    nor a problem with one rollout.
    """
    rows = round.rows
    problem, number = np.unique(rows["problem_id"].astype(str), return_inverse=True)
    own = own_rows(rows)
    found = np.full(len(problem), np.nan)
    for each in range(len(problem)):
        texts = [text or "" for text in rows["completion"][own & (number == each)]]
        if len(texts) > 1:
            found[each] = 1 - similarities(texts)[np.triu_indices(len(texts), 1)].mean()
    known = ~np.isnan(found)
    return {"problem_id": problem[known], "dissimilarity": found[known]}
