"""Group-relative advantages of whole answers that see their tokens: how many they are, how uncertain: HAPO, GTPO."""

from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.rows import Rows


@component("advantage", paper="arXiv 2509.16591", needs=("reward", "group"), compares_group=True)
def hapo(rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-6, largest: Annotated[float, Gt(0.0)] = 5.0) -> Tensor:
    """HAPO: A_i = (r_i - mean) / (std + std_eps), mean and std (ddof 0) over the group's tokens, each with its reward.

    So long answers count for more, as they do in a mean loss over tokens, and A sums to 0 over tokens. A group in which
    an |A| is `largest` or more takes `grpo`'s. HAPO, arXiv 2509.16591, as in the authors' code (train.md). Rows
    without a reward, and groups of equal rewards: see `grpo`.

    Args:
        std_eps: Added to the std.
        largest: |A| from which the group is normalised by answers.
    """
    reward, groups = rows["reward"], rows.by("group")
    tokens = torch.where(reward.isnan(), 0.0, rows.row_tokens.double())
    total = groups.sum(tokens).clamp_min(1)
    centred = reward - groups.sum(tokens * reward) / total
    std = (groups.sum(tokens * centred**2) / total).sqrt()
    found = torch.where(groups.varied(reward), centred / (std + std_eps), 0.0).nan_to_num(0.0)
    return torch.where(groups.max(found.abs()) >= largest, grpo(rows, std_eps=std_eps), found)


@component(
    "advantage", paper="arXiv 2508.03772", needs=("reward", "group", "now.entropy"), when="step", compares_group=True
)
def gtpo(
    rows: Rows,
    *,
    scale: Annotated[float, Ge(0.0)] = 0.1,
    most: Annotated[float, Gt(0.0)] = 0.7,
    std_eps: Annotated[float, Ge(0.0)] = 1e-4,
) -> Tensor:
    """GTPO: A_i = (that of `grpo`) - scale H_i, and 0 if H_i > most, H_i the mean entropy of the answer's tokens, (N,).

    GTPO, arXiv 2508.03772, as in the authors' code (gtpo_training.py); 0.7 is about ln 2. Its weight `gtpo` protects
    what answers share. Deviation: 0 in groups of equal rewards, where they have -scale H_i.

    Args:
        scale: Weight of the entropy, per nat.
        most: Mean entropy, nats, above which an answer is left out.
        std_eps: Added to the std.
    """
    entropy = rows.row_mean(rows["now.entropy"].double())
    taught = rows.by("group").varied(rows["reward"]) & ~rows["reward"].isnan() & (entropy <= most)
    return torch.where(taught, grpo(rows, std_eps=std_eps) - scale * entropy, 0.0)
