"""Group-relative advantages of whole answers that see their tokens: HAPO, GTPO, RENT, ASPO.

What counts is how many tokens there are, how uncertain, or at which of them a tool is called.
"""

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import grpo, standardised
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


@component("advantage", paper="arXiv 2505.22660", needs=("group", "now.entropy"), when="step")
def rent(rows: Rows, *, std_eps: Annotated[float, Ge(0.0)] = 1e-4) -> Tensor:
    """RENT: A_i = (c_i - mean(c)) / (std(c) + std_eps) within the group, c_i = -mean_t H_t of its tokens, (N,).

    Maximizing Confidence Alone Improves Reasoning, arXiv 2505.22660: H is the entropy of the whole distribution at a
    token, and neither a gold answer nor a reward is read. Deviations: H is that of the policy before the step, at
    the row's temperature; rows that could not be judged are left out of a batch, as ever. std with ddof 1. 0 for a row
    without tokens.

    Args:
        std_eps: Added to the std.
    """
    certain = torch.where(rows.row_tokens > 0, -rows.row_mean(rows["now.entropy"].double()), torch.nan)
    return standardised(certain, rows.by("group"), std_eps)


@component(
    "advantage",
    paper="arXiv 2508.19201",
    needs=("reward", "correct", "group", "length", "marks.call"),
    compares_group=True,
)
def aspo(
    rows: Rows,
    *,
    delta: Annotated[float, Lt(0.0)] = -2.0,
    most: Annotated[float, Gt(0.0), Lt(1.0)] = 0.7,
    std_eps: Annotated[float, Ge(0.0)] = 1e-4,
) -> Tensor:
    """ASPO: A_i = a_i + clip(delta (p_i - mean(p)) / mean(L), -most |a_i|, most |a_i|) of right rows that call, (N,).

    a is that of `grpo`, p_i the token at which the answer's first mark `call` begins, L_i its length; the means are
    over the right answers of the group that call. These gain by an early call, and none changes its sign; all others
    keep a_i. Understanding Tool-Integrated Reasoning, arXiv 2508.19201, eq. 2; the defaults are those of a port to
    verl.

    Args:
        delta: Strength of the pull to early calls.
        most: Largest share of |a_i| by which it changes.
        std_eps: Added to the std.
    """
    groups, own, calls = rows.by("group"), grpo(rows, std_eps=std_eps), rows.marks("call")
    first = torch.full((rows.num_rows,), torch.inf, dtype=torch.float64)
    first = first.scatter_reduce(0, calls.row, calls.start.double(), "amin")
    counted = ~rows["reward"].isnan() & (rows["correct"] == 1) & first.isfinite()
    place, length = (torch.where(counted, each, torch.nan) for each in (first, rows["length"].double()))
    shift = delta * (place - groups.mean(place)) / groups.mean(length).clamp_min(1)
    return torch.where(counted, own + shift.clamp(-most * own.abs(), most * own.abs()), own)
