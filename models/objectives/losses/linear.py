"""Losses that are linear in a function of the token's log-prob: REINFORCE."""

from torch import Tensor

from gradus.components import component
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows


@component(
    "loss",
    paper="arXiv 2402.14740",
    needs=("now.logp", "advantage"),
    takes=("advantage", "coefficient"),
    needs_sampler=False,
)
def reinforce(rows: Rows) -> tuple[Tensor, Metrics]:
    """REINFORCE: L_t = -A_t log pi_t.

    Back to Basics, arXiv 2402.14740, eq. 6, with the advantage for the reward less its baseline. Without a ratio or a
    clip: meant for one step an update, or for coefficients that are made anew for every step (advantage `disco`).
    """
    return -rows["advantage"] * rows["now.logp"], {}
