"""Pulls to a teacher: by its log-prob of the token that was sampled, and STAR's, by its most likely tokens."""

from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import MAX_LOG_RATIO, Metrics, k3_divergence
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2506.02208",
    needs=("now.logp", "teacher.logp"),
    takes=(),
    acts_without_advantage=True,
    needs_sampler=False,
    regulariser=True,
)
def teacher_kl(rows: Rows, *, estimate: Literal["k2", "k3"] = "k2") -> tuple[Tensor, Metrics]:
    """Pull to a teacher at the sampled tokens: L_t = d^2 / 2 (k2) or exp(d) - d - 1 (k3), d = log pi_T,t - log pi_t.

    KDRL, arXiv 2506.02208: estimates of KL(policy || teacher) on the policy's own completions. The gradient of k2 is
    that of the reverse KL in expectation; that of k3 is of the forward one's form. Deviation: in k3 |d| is cut at
    MAX_LOG_RATIO. Metric: teacher_gap, the mean of log pi - log pi_T.

    Args:
        estimate: k2 or k3.
    """
    now, teacher = rows["now.logp"], rows["teacher.logp"]
    loss = (teacher - now).square() / 2 if estimate == "k2" else k3_divergence(now, teacher)
    return loss, {"teacher_gap": (now - teacher).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)}


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
