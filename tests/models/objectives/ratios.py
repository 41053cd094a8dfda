"""Rows with given log ratios, for tests of losses of the ratio."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradus.components.rows import Marks
from gradus.models.objectives.losses import Metrics
from gradus.models.objectives.rows import Rows

Loss = Callable[[Rows], tuple[Tensor, Metrics]]


def view(
    log_ratios: Sequence[float],
    advantages: Sequence[float],
    lengths: Sequence[int] | None = None,
    *,
    then: float | Sequence[float] = -1.0,
    mask: Sequence[bool] | None = None,
    entropy: Sequence[float] | None = None,
    marks: Marks | None = None,
) -> tuple[Rows, Tensor]:
    """Return rows whose old and sampler's log-probs are `then`, and the log-probs now, (M,) float64 with gradient."""
    ratios = torch.tensor(log_ratios, dtype=torch.float64)
    before = torch.as_tensor(then, dtype=torch.float64).expand(len(ratios)).clone()
    now = (before + ratios).requires_grad_()
    of_tokens = {
        "now.logp": now,
        "old.logp": before,
        "sampler.logp": before,
        "advantage": torch.tensor(advantages, dtype=torch.float64),
        "now.entropy": torch.tensor(entropy or [1.0] * len(ratios), dtype=torch.float64),
    }
    none = torch.zeros(0, dtype=torch.int64)
    found = {"marks.sentence": Marks(none, none, none, none.double(), none.numpy()) if marks is None else marks}
    sizes = torch.tensor([len(ratios)] if lengths is None else lengths)
    return Rows({}, of_tokens, sizes, None if mask is None else torch.tensor(mask, dtype=torch.bool), found), now


def logs(ratios: Sequence[float]) -> list[float]:
    return [math.log(each) for each in ratios]


def gradient(loss: Tensor, now: Tensor, mask: Tensor | None = None) -> list[float]:
    """Return the gradient of the sum of the losses of counted tokens."""
    now.grad = None
    (loss if mask is None else loss[mask]).sum().backward()
    assert now.grad is not None
    return now.grad.tolist()
