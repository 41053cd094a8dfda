"""Credit from a teacher's log-probs: on-policy distillation as a reward of each token, by another model or itself."""

from typing import Annotated

from annotated_types import Ge
from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows


@component(
    "advantage",
    paper="Thinking Machines, On-Policy Distillation, 2025",
    needs=("now.logp", "teacher.logp"),
    per="token",
    when="step",
)
def taught(rows: Rows, *, max_nats: Annotated[float, Ge(0.0)] = 10.0) -> Tensor:
    """On-policy distillation: A_t = log pi_T,t - log pi_t at the token that was sampled, (M,).

    Minus the reverse KL divergence to the teacher, token by token and without discount, as the advantage of a policy
    gradient: Lu et al., On-Policy Distillation, Thinking Machines Lab, 2025. With `reinforce` the gradient is that of
    KL(policy || teacher) of the next token, in expectation. No reward is read. Deviation: |A_t| is cut.

    Args:
        max_nats: Largest |A_t|.
    """
    return (rows["teacher.logp"] - rows["now.logp"]).double().clamp(-max_nats, max_nats)


@component(
    "advantage",
    paper="arXiv 2601.20802",
    needs=("now.logp", "privileged.logp"),
    per="token",
    when="step",
)
def self_taught(rows: Rows, *, max_nats: Annotated[float, Ge(0.0)] = 10.0) -> Tensor:
    """Self-distillation: A_t = log pi(y_t | x, c, y_<t) - log pi(y_t | x, y_<t), c what the policy is not shown, (M,).

    `taught` with the policy that sees the privileged context c as the teacher, as the measure `privileged` has it: SDPO
    (arXiv 2601.20802), OPSD (arXiv 2601.18734), SDFT (arXiv 2601.19897). 0 where c is missing. Deviations: of the
    sampled token alone, where the papers sum over the vocabulary or its most likely tokens; |A_t| is cut.

    Args:
        max_nats: Largest |A_t|.
    """
    gap = (rows["privileged.logp"] - rows["now.logp"]).double()
    return gap.clamp(-max_nats, max_nats).nan_to_num(0.0)
