"""Pulls to a teacher: by its log-prob of the token that was sampled, and STAR's, by its most likely tokens."""

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import huber_loss

from gradus.components import component
from gradus.models.objectives.losses import Metrics, k3_divergence
from gradus.models.objectives.rows import Rows

Estimate = Literal["k2", "k3"]
MaxNats = Annotated[float, Gt(0.0)]


@component(
    "loss",
    paper="arXiv 2506.02208",
    needs=("now.logp", "teacher.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
)
def teacher_kl(rows: Rows, *, estimate: Estimate = "k2", max_nats: MaxNats = 10.0) -> tuple[Tensor, Metrics]:
    """Pull to a teacher at the sampled tokens: L_t = d^2 / 2 (k2) or exp(d) - d - 1 (k3), d = log pi_T,t - log pi_t.

    Estimates of KL(policy || teacher) on the policy's own completions: KDRL, arXiv 2506.02208. The gradient of k2 is
    that of REINFORCE with the advantage d, in expectation that of the reverse KL of the next token: on-policy
    distillation (Lu et al., Thinking Machines Lab, 2025). Deviation: beyond max_nats k2 is linear, and k3 is
    cut. Metric: teacher_gap, the mean of log pi - log pi_T.

    Args:
        estimate: k2 or k3.
        max_nats: Largest |d| that the gradient of k2 has.
    """
    loss, gap = _pull(rows["now.logp"], rows["teacher.logp"], estimate, max_nats)
    return loss, {"teacher_gap": gap}


@component(
    "loss",
    paper="arXiv 2601.20802",
    needs=("now.logp", "privileged.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
)
def self_kl(rows: Rows, *, estimate: Estimate = "k2", max_nats: MaxNats = 10.0) -> tuple[Tensor, Metrics]:
    """Self-distillation: `teacher_kl` with d = log pi(y_t | x, c) - log pi(y_t | x), c a privileged context.

    The teacher is the policy that is shown c, as the measure `privileged` has it: SDPO (arXiv 2601.20802), OPSD
    (arXiv 2601.18734), SDFT (arXiv 2601.19897). 0 where c is missing; such tokens stay in the denominators. Deviation:
    of the sampled token alone, where the papers sum over the vocabulary or its most likely tokens. Metric: self_gap.

    Args:
        estimate: k2 or k3.
        max_nats: Largest |d| that the gradient of k2 has.
    """
    now, shown = rows["now.logp"], rows["privileged.logp"].to(rows["now.logp"].dtype)
    loss, gap = _pull(now, torch.where(shown.isnan(), now.detach(), shown), estimate, max_nats)
    return loss, {"self_gap": gap}


@component(
    "loss",
    paper="STAR (Qwen-Applications)",
    needs=("now.top", "teacher.top"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
)
def star(rows: Rows, *, tail: Annotated[float, Ge(0.0)] = 10.0) -> tuple[Tensor, Metrics]:
    """STAR: L_t = sum over the teacher's K most likely v of p_T(v) log(p_T(v) / p(v)) + tail p(all other tokens).

    Constrained distillation of STAR, by its released patch: a forward KL alone leaves the policy's mass beyond the K
    alone, and the penalty takes it away. Deviation: the penalty is of all other tokens, where the authors' is of those
    among the policy's M most likely. Metric: tail_mass, the policy's mass beyond the K.

    Args:
        tail: Weight of the policy's mass beyond the teacher's K.
    """
    teacher, policy = rows["teacher.top"], rows["now.top"]
    beyond = (1 - policy.exp().sum(-1)).clamp_min(0.0)
    loss = (teacher.exp() * (teacher - policy)).sum(-1) + tail * beyond
    return loss, {"tail_mass": beyond.detach()}


def _pull(now: Tensor, teacher: Tensor, estimate: Estimate, max_nats: float) -> tuple[Tensor, Tensor]:
    """The loss of each token, and log pi - log pi_T."""
    if estimate == "k3":
        return k3_divergence(now, teacher), (now - teacher).detach()
    return huber_loss(now, teacher, reduction="none", delta=max_nats), (now - teacher).detach()
