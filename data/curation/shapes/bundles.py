"""Shapes that compare the rows of several problems."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Rows


@component("shape", paper="arXiv 2510.00911", needs=("group", "reward", "sample"))
def bundles(rows: Rows, rng: np.random.Generator, *, size: Annotated[int, Ge(1)] = 5) -> Mapping[str, Any]:
    """Bundle groups, and reward each row by the sum over the bundle's rows of its number (RiskPO).

    RiskPO (arXiv 2510.00911): the j-th rollouts of the bundled problems are one paper of an examination, whose score
    is the sum of their rewards and that of each of them; papers of a bundle are compared. Bundles are drawn. The last
    bundle of a round may be smaller. A row without a reward adds nothing, and is left out.

    Args:
        size: Groups of a bundle.
    """
    reward, sample = rows["reward"], np.nan_to_num(rows["sample"], nan=-1).astype(np.int64)
    groups, number = np.unique(rows["group"], return_inverse=True)
    place = np.argsort(rng.permutation(len(groups)))
    bundle = (place // size)[number]
    paper = np.unique(np.stack((bundle, sample)), axis=1, return_inverse=True)[1].reshape(-1)
    score = np.bincount(paper, np.nan_to_num(reward))[paper]
    return {"group": int(groups.max(initial=-1)) + 1 + bundle, "reward": np.where(np.isnan(reward), np.nan, score)}
