"""Advantages of single tokens, by the parts of completions that were marked."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Groups, Rows


@component(
    "advantage",
    paper="arXiv 2508.02298",
    needs=("reward", "group", "marks.wrong"),
    per="token",
    compares_group=True,
)
def capo(
    rows: Rows,
    *,
    outcome: Annotated[float, Ge(0.0)] = 2.0,
    process: Annotated[float, Ge(0.0)] = 1.0,
    std_eps: Annotated[float, Ge(0.0)] = 1e-4,
) -> Tensor:
    """CAPO: R_t = outcome * r - process * 1[t is marked wrong], less the mean of the group's tokens, over their std.

    CAPO (arXiv 2508.02298): asymmetric rewards of outcome and process. The weights, and the normalisation over all
    counted tokens of a group (that of GRPO's process supervision, arXiv 2402.03300), are guesses.

    Args:
        outcome: Weight of the reward of the whole completion.
        process: Penalty of a token that belongs to a wrong step.
        std_eps: Added to the std.
    """
    rewards = outcome * rows["reward"][rows.row] - process * rows.inside(rows.marks("wrong")).double()
    counted = torch.where(rows.mask, rewards, torch.nan)
    groups = Groups(rows.by("group").of[rows.row])
    return torch.where(groups.varied(counted), (rewards - groups.mean(counted)) / (groups.std(counted) + std_eps), 0.0)
