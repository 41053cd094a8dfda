"""Advantages of a group that has reference answers beside the policy's own: RL-PLUS, GRAO."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.rows import Rows


@component("advantage", paper="YihongDong/RL-PLUS", needs=("reward", "group", "origin"), compares_group=True)
def rl_plus(rows: Rows) -> Tensor:
    """RL-PLUS: A_i = r_i - mean of the policy's own rewards of the group, for external rows too, without a std, (N,).

    0 for a row without a reward, and in a group without a judged row of the policy.
    """
    reward, groups = rows["reward"], rows.by("group")
    own = torch.where(rows.having(origin="own"), reward, torch.nan)
    return torch.where(groups.count(own) > 0, (reward - groups.mean(own)).nan_to_num(0.0), 0.0)


@component(
    "advantage",
    paper="GRAO",
    needs=("reward", "group", "origin", "now.logp"),
    when="step",
    returns=("coefficient",),
    mean_over="row",
    compares_group=True,
)
def grao(
    rows: Rows,
    *,
    beta: Annotated[float, Ge(0.0)] = 1.0,
    align: Annotated[float, Ge(0.0)] = 0.1,
    std_eps: Annotated[float, Ge(0.0)] = 1e-4,
) -> Tensor:
    """GRAO: coefficients of log pi that weigh samples, the imitation of references, and their preference, (N,).

    J = mean_i (A_i l_i + align sum_y log sigmoid(l_y - l_i)) + beta mean_y (A_y l_y), where l is a row's mean log-prob,
    A the group-relative advantage over samples and references together (see `grpo`), and the sum has the references y
    of the group whose reward is above that of the sample i: it ends when samples are as good. For the loss `reinforce`
    with the aggregation `sequence_mean`, in a term for the samples and one for the references of equally large groups.
    The components are the abstract's, their form is a guess.

    Args:
        beta: Weight of the imitation.
        align: Weight of the preference.
        std_eps: Added to the std.
    """
    relative, own = grpo(rows, std_eps=std_eps), rows.having(origin="own")
    likely, group, reward = rows.row_mean(rows["now.logp"].double()), rows.by("group").of, rows["reward"]
    better = (group[:, None] == group) & (reward[:, None] > reward) & ~own[:, None] & own
    reference, sample = torch.nonzero(better, as_tuple=True)
    pull = align * torch.sigmoid(likely[sample] - likely[reference])
    samples = rows.by("group").sum(own.double())
    coefficient = torch.where(own, relative, beta * relative).double()
    return coefficient.index_add_(0, reference, pull / samples[reference]).index_add_(0, sample, -pull)
