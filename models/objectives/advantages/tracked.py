"""Advantages over a baseline that a tracker keeps."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows


@component("advantage", paper="arXiv 2509.13232", needs=("reward", "spo.value"))
def spo(rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-8) -> Tensor:
    """Return the reward over the problem's tracked value, normalised over the rows of the update, (N,) (SPO).

    SPO, single-stream (arXiv 2509.13232): A = (d - mean(d)) / (std(d) + std_eps) of all rows, d = r - v, where v is the
    value of the tracker `spo` before the round; a half for a problem that it does not know. 0 for a row without a
    reward.

    Args:
        std_eps: Added to the std.
    """
    known = ~rows["reward"].isnan()
    over = rows["reward"] - rows["spo.value"].nan_to_num(0.5)
    std = over[known].std(correction=0) if bool(known.any()) else over.new_zeros(())
    return torch.where(known, (over - over[known].mean()) / (std + std_eps), 0.0)
