"""A draw that fills a batch with few problems."""

import numpy as np

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.results import Draw


@component("sampler", paper="arXiv 2504.20571", needs=())
def repeated(candidates: Rows, num: int, rng: np.random.Generator) -> Draw:  # noqa: ARG001 - nothing is drawn
    """Take the rows in order, as ranked, again and again until there are `num`; every weight is 1.

    1-shot RLVR (arXiv 2504.20571) duplicates its one training example until it fills the batch. Each repeat is a group
    of its own with other seeds. `curate.draw` is the size of the batch, groups.
    """
    index = np.arange(num if candidates.num_rows else 0) % max(1, candidates.num_rows)
    return Draw(index, np.ones(len(index)), np.zeros(len(index), dtype=np.bool_), in_order=True)
