"""Losses as their formulas are written down, with plain torch: `(columns, row, lengths) -> (loss, metrics)`.

`columns` are tensors by name, `row` (M,) the row of each token, `lengths` (N,) tokens of the rows. Settings are the
defaults of benchmarks/objectives.py's losses.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Columns = Mapping[str, Tensor]
Found = tuple[Tensor, dict[str, Tensor]]


def _ratio(now: Tensor, old: Tensor) -> Tensor:
    return torch.exp(torch.clamp(now - old, -10.0, 10.0))


def _clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Found:
    loss = -torch.min(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)
    with torch.no_grad():
        cut_low = ((ratio < 1 - low) & (advantage < 0)).float()
        cut_high = ((ratio > 1 + high) & (advantage > 0)).float()
    return loss, {"low": cut_low, "high": cut_high, "mean": ratio.detach(), "max": ratio.detach()}


def clip(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return _clipped(_ratio(columns["now.logp"], columns["old.logp"]), columns["advantage"], 0.2, 0.28)


def behaviour_clip(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return _clipped(_ratio(columns["now.logp"], columns["sampler.logp"]), columns["advantage"], 0.2, 0.28)


def mixture(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    mixed = torch.log(0.875 * torch.exp(columns["old.logp"]) + 0.125)
    return _clipped(_ratio(columns["now.logp"], mixed), columns["advantage"], 0.2, 0.28)


def _of_rows(values: Tensor, row: Tensor, lengths: Tensor) -> Tensor:
    return torch.zeros(len(lengths)).index_add(0, row, values)


def gspo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    means = _of_rows(columns["now.logp"] - columns["old.logp"], row, lengths) / lengths
    ratio = torch.exp(torch.clamp(means, -10.0, 10.0))[row]
    return _clipped(ratio, columns["advantage"], 3e-4, 4e-4)


def reinforce(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return -columns["advantage"] * columns["now.logp"], {}


def reinforce_at_1(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return -columns["advantage"] * columns["now.logp_at_1"], {}


def dcpo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    now = columns["now.logp"]
    with torch.no_grad():
        tempered = _ratio(columns["now.logp_at_1"], now)
    return -tempered * _ratio(now, columns["old.logp"]) * columns["advantage"], {"tempered": tempered}


def sft(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return -columns["now.logp"], {}


def luffy(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    p = torch.exp(columns["now.logp"])
    shaped = p / (p + 0.1)
    return -columns["advantage"] * shaped, {"shaping": shaped.detach()}


def rl_plus(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    p, before = torch.exp(columns["now.logp"]), torch.exp(columns["old.logp"])
    weight = 2 * p / (before + 0.5 * (before + 1))
    with torch.no_grad():
        unexpected = torch.clamp(1 - p, min=0.0) ** 0.5
    return -weight * columns["advantage"] * unexpected, {"mixture": weight.detach()}


def k3(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return _k3(columns["reference.logp"] - columns["now.logp"]), {}


def _k3(difference: Tensor) -> Tensor:
    cut = torch.clamp(difference, -10.0, 10.0)
    return torch.exp(cut) - cut - 1


def kl(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    difference = columns["now.logp"] - columns["reference.logp"]
    gradient = 0.5 * difference**2
    with torch.no_grad():
        value = _k3(-difference)
    return gradient + (value - gradient).detach(), {}


def weighed_kl(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    now = columns["now.logp"]
    return _ratio(now, columns["old.logp"]) * _k3(columns["reference.logp"] - now), {}


def forward_kl(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del lengths
    raised = torch.exp(torch.nan_to_num(columns["reward"])).float()[row]
    weight = raised * _ratio(columns["reference.logp"], columns["old.logp"])
    return weight * (columns["reference.logp"] - columns["now.logp"]), {"weight": weight}


def dph(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return _k3(columns["now.logp"] - columns["sampler.logp"]), {}


def entropy(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return -columns["now.entropy"], {}


def entropy_band(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    below, above = torch.relu(0.8 - columns["now.entropy"]), torch.relu(columns["now.entropy"] - 1.2)
    return below + above, {"below": (below > 0).float(), "above": (above > 0).float()}


def distil(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    known, own = (columns[name] for name in ("teacher.top", "now.top"))
    mass = torch.exp(known).sum(-1)
    teacher, policy = (
        torch.cat([each, torch.log(torch.clamp(1 - torch.exp(each).sum(-1, keepdim=True), min=1e-6))], -1)
        for each in (known, own)
    )
    return (torch.exp(teacher) * (teacher - policy)).sum(-1), {"mass": mass}


def tbrm(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    first = torch.cumsum(lengths, 0) - lengths
    sums = _of_rows(columns["now.logp"] - columns["reference.logp"], row, lengths)
    residual = columns["now.logsumexp"][first] + sums - columns["advantage"][first] / 0.002
    return (residual**2)[row], {"residual": residual.detach()[row]}


PLAIN: Mapping[str, Callable[[Columns, Tensor, Tensor], Found]] = {
    each.__name__: each
    for each in (
        clip,
        dcpo,
        distil,
        dph,
        entropy,
        entropy_band,
        forward_kl,
        gspo,
        behaviour_clip,
        k3,
        kl,
        luffy,
        mixture,
        reinforce,
        reinforce_at_1,
        rl_plus,
        sft,
        tbrm,
        weighed_kl,
    )
}
