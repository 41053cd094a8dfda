"""Losses as their formulas are written down, with plain torch: `(columns, row, lengths) -> (loss, metrics)`.

`columns` are tensors by name, `mask` (M,) among them, the tokens that sums over a row count, and marks; `row` (M,) is
the row of each token, `lengths` (N,) tokens of the rows. Settings are the defaults of benchmarks/objectives.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Columns = Mapping[str, Any]
Found = tuple[Tensor, dict[str, Tensor]]


def _ratio(now: Tensor, old: Tensor) -> Tensor:
    return torch.exp(torch.clamp(now - old, -10.0, 10.0))


def _clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> Found:
    return _between(ratio, advantage, 1 - low, 1 + high)


def _between(ratio: Tensor, advantage: Tensor, floor: Any, ceiling: Any) -> Found:
    loss = -torch.min(ratio * advantage, torch.clamp(ratio, floor, ceiling) * advantage)
    with torch.no_grad():
        cut_low = ((ratio < floor) & (advantage < 0)).float()
        cut_high = ((ratio > ceiling) & (advantage > 0)).float()
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


def _of_rows(columns: Columns, values: Tensor, row: Tensor, lengths: Tensor) -> Tensor:
    return torch.zeros(len(lengths)).index_add(0, row, torch.where(columns["mask"], values, 0.0))


def gspo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    means = _of_rows(columns, columns["now.logp"] - columns["old.logp"], row, lengths) / lengths
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
    sums = _of_rows(columns, columns["now.logp"] - columns["reference.logp"], row, lengths)
    residual = columns["now.logsumexp"][first] + sums - columns["advantage"][first] / 0.002
    return (residual**2)[row], {"residual": residual.detach()[row]}


def dual_clip(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    advantage, ratio = columns["advantage"], _ratio(columns["now.logp"], columns["old.logp"])
    gain = torch.min(ratio * advantage, torch.clamp(ratio, 0.8, 1.28) * advantage)
    gain = torch.where(advantage < 0, torch.max(gain, 3.0 * advantage), gain)
    with torch.no_grad():
        low, high = ((ratio < 0.8) & (advantage < 0)).float(), ((ratio > 1.28) & (advantage > 0)).float()
        bounded = ((ratio > 3.0) & (advantage < 0)) | ((ratio < 0.0) & (advantage > 0))
    return -gain, {"low": low, "high": high, "mean": ratio.detach(), "max": ratio.detach(), "cut": bounded.float()}


def sapo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    advantage, ratio = columns["advantage"], _ratio(columns["now.logp"], columns["old.logp"])
    tau = torch.where(advantage > 0, 1.0, 1.05)
    gate = torch.sigmoid(tau * (ratio - 1))
    return -(4 / tau) * gate * advantage, {"gate": (4 * gate * (1 - gate)).detach(), "max": ratio.detach()}


def cpgd(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    advantage, log = columns["advantage"], columns["now.logp"] - columns["old.logp"]
    low, high = -0.22314355131420976, 0.1823215567939546  # ln 0.8, ln 1.2
    loss = -torch.min(log * advantage, torch.clamp(log, low, high) * advantage)
    with torch.no_grad():
        cut_low, cut_high = ((log < low) & (advantage < 0)).float(), ((log > high) & (advantage > 0)).float()
        largest = torch.exp(torch.clamp(log, -10.0, 10.0))
    return loss, {"low": cut_low, "high": cut_high, "max": largest}


def standardised(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    advantage, log = columns["advantage"], torch.clamp(columns["now.logp"] - columns["old.logp"], -10.0, 10.0)
    with torch.no_grad():
        mean = (_of_rows(columns, log, row, lengths) / lengths)[row]
        std = torch.sqrt(_of_rows(columns, (log - mean) ** 2, row, lengths) / lengths).clamp(min=0.01)[row]
    units = torch.clamp((log - mean) / std, -10.0, 10.0)
    loss = -std * torch.min(torch.exp(units) * advantage, torch.exp(torch.clamp(units, -2.0, 2.0)) * advantage)
    with torch.no_grad():
        low, high = ((units < -2.0) & (advantage < 0)).float(), ((units > 2.0) & (advantage > 0)).float()
    return loss, {"low": low, "high": high, "std": std}


def gspo_token(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    now = columns["now.logp"]
    with torch.no_grad():
        mean = torch.clamp(_of_rows(columns, now - columns["old.logp"], row, lengths) / lengths, -10.0, 10.0)[row]
    return _clipped(torch.exp(mean + now - now.detach()), columns["advantage"], 3e-4, 4e-4)


def gmpo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    advantage, log = columns["advantage"], torch.clamp(columns["now.logp"] - columns["old.logp"], -10.0, 10.0)
    sign = torch.where(advantage > 0, 1.0, -1.0)
    cut = sign * torch.min(sign * log, sign * torch.clamp(log, -0.4, 0.4))
    ratio = torch.exp(_of_rows(columns, cut, row, lengths) / lengths)[row]
    with torch.no_grad():
        low, high = ((log < -0.4) & (advantage < 0)).float(), ((log > 0.4) & (advantage > 0)).float()
        largest = torch.exp(log)
    return -ratio * advantage, {"low": low, "high": high, "mean": ratio.detach(), "max": largest}


def sspo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    marks, first = columns["marks.sentence"], torch.cumsum(lengths, 0) - lengths
    begins = torch.zeros(len(row) + 1, dtype=torch.int64)
    for places in (first[marks.row] + marks.start, first[marks.row] + marks.end, first):
        begins[places] = 1
    part = torch.cumsum(begins[:-1], 0) - 1
    sizes, entropy = torch.bincount(part), columns["now.entropy"].detach()
    mean = (_of_rows(columns, entropy, row, lengths) / lengths)[row]
    factor = torch.clamp((_of_rows(columns, entropy, part, sizes) / sizes)[part] / mean, 0.5, 2.0)
    means = _of_rows(columns, columns["now.logp"] - columns["old.logp"], part, sizes) / sizes
    ratio = torch.exp(torch.clamp(means, -10.0, 10.0))[part]
    return _between(ratio, columns["advantage"], 1 - 0.04 * factor, 1 + 0.05 * factor)


def cispo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    with torch.no_grad():
        ratio = _ratio(columns["now.logp"], columns["old.logp"])
        weight = torch.clamp(ratio, max=5.0)
        cut = (ratio > 5.0).float()
    return -weight * columns["advantage"] * columns["now.logp"], {"weight": weight, "cut": cut}


def dppo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    now, mu, advantage = columns["now.logp"], columns["sampler.logp"], columns["advantage"]
    with torch.no_grad():
        change = torch.exp(now.double()) - torch.exp(mu.double())
        outside = torch.where(advantage > 0, change > 0.15, change < -0.15)
        weight = torch.where(outside, 0.0, torch.clamp(_ratio(now, mu), max=20.0))
    return -weight * advantage * now, {"weight": weight, "masked": outside.float()}


def rec(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    now, advantage = columns["now.logp"], columns["advantage"]
    with torch.no_grad():
        ratio = _ratio(now, columns["sampler.logp"])
        inside = torch.where(advantage > 0, ratio <= 1.2, ratio >= 0.8).float()
    return -inside * advantage * now, {"weight": inside, "masked": 1 - inside}


def topr(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    now, advantage = columns["now.logp"], columns["advantage"]
    with torch.no_grad():
        ratio = torch.exp(torch.clamp(_of_rows(columns, now - columns["sampler.logp"], row, lengths), max=0.0))[row]
        weight = torch.where(advantage < 0, ratio, 1.0)
    return -weight * advantage * now, {"weight": weight}


def vespo(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    now, advantage = columns["now.logp"], columns["advantage"]
    with torch.no_grad():
        log = torch.clamp(_of_rows(columns, now - columns["sampler.logp"], row, lengths), -10.0, 10.0)
        up = torch.exp(2.0 * log + 3.0 * (1 - torch.exp(log)))
        down = torch.exp(3.0 * log + 2.0 * (1 - torch.exp(log)))
        weight = torch.where(advantage >= 0, up[row], down[row])
    return -weight * advantage * now, {"weight": weight}


def opmd(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    now = columns["now.logp"]
    whole = _of_rows(columns, now - columns["sampler.logp"], row, lengths)
    return -columns["advantage"] * now + (0.05 * whole**2 / lengths)[row], {"log": whole.detach()[row]}


def asymre(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return -(columns["advantage"] + 0.1) * columns["now.logp"], {}


def llds(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    fall = columns["old.logp"] - columns["now.logp"]
    with torch.no_grad():
        gate = (_of_rows(columns, fall, row, lengths) > 0)[row] & (columns["advantage"] >= 0)
    return torch.where(gate, torch.relu(fall), 0.0), {"gate": gate.float()}


def decoupled(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    loss, metrics = _clipped(_ratio(columns["now.logp"], columns["old.logp"]), columns["advantage"], 0.2, 0.2)
    weight = _ratio(columns["old.logp"], columns["sampler.logp"])
    weight = torch.where(weight <= 5.0, weight, 0.0)
    return weight * loss, {**metrics, "weight": weight}


def iw_sft(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    log = _of_rows(columns, columns["old.logp"] - columns["reference.logp"], row, lengths)
    weight = torch.clamp(torch.exp(torch.clamp(log, -10.0, 10.0)), 0.5, 2.0)[row]
    return -weight * columns["now.logp"], {"weight": weight}


def abs_log_ratio(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    distance = torch.abs(columns["now.logp"] - columns["old.logp"])
    return distance, {"distance": distance.detach()}


def teacher_kl(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    return _pull(columns["now.logp"] - columns["teacher.logp"])


def self_kl(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    now, shown = columns["now.logp"], columns["privileged.logp"].float()
    return _pull(now - torch.where(torch.isnan(shown), now.detach(), shown))


def _pull(gap: Tensor) -> Found:
    return torch.where(gap.abs() <= 10.0, 0.5 * gap**2, 10.0 * (gap.abs() - 5.0)), {"gap": gap.detach()}


def star(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    del row, lengths
    teacher, own = columns["teacher.top"], columns["now.top"]
    rest = torch.relu(1 - torch.exp(own).sum(-1))
    return (torch.exp(teacher) * (teacher - own)).sum(-1) + 10.0 * rest, {"rest": rest.detach()}


def rover(columns: Columns, row: Tensor, lengths: Tensor) -> Found:
    with torch.no_grad():
        value = columns["now.mean_logp"] - columns["reference.mean_logp"]
        following = torch.roll(value, -1)
        following[torch.cumsum(lengths, 0) - 1] = 0.0
        target = columns["advantage"] + following
    del row
    found = 1.0 * (columns["now.logp"] - columns["reference.logp"])  # rho
    return (found - target) ** 2, {"value": found.detach().abs()}


PLAIN: Mapping[str, Callable[[Columns, Tensor, Tensor], Found]] = {
    each.__name__: each
    for each in (
        abs_log_ratio,
        asymre,
        behaviour_clip,
        cispo,
        clip,
        cpgd,
        dcpo,
        decoupled,
        distil,
        dph,
        dppo,
        dual_clip,
        entropy,
        entropy_band,
        forward_kl,
        gmpo,
        gspo,
        gspo_token,
        iw_sft,
        k3,
        kl,
        llds,
        luffy,
        mixture,
        opmd,
        rec,
        reinforce,
        reinforce_at_1,
        rl_plus,
        rover,
        sapo,
        self_kl,
        sft,
        sspo,
        standardised,
        star,
        tbrm,
        teacher_kl,
        topr,
        vespo,
        weighed_kl,
    )
}
