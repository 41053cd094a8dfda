"""The learning rate of a step."""

import math

FLOOR_FRAC = 0.1
"""Share of the peak that the decay ends at."""


def learning_rate(step: int, *, lr: float, warmup_steps: int = 0, decay_steps: int = 0) -> float:
    """Linear warm-up to `lr`, then a cosine down to a tenth of it at `decay_steps`, constant after.

    `step` counts from 0 over the whole run; `decay_steps` 0 never decays. The cosine is SGDR's without restarts, arXiv
    1608.03983, eq. 5.

    >>> [learning_rate(step, lr=1.0, warmup_steps=4) for step in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    if step < warmup_steps:
        return lr * ((step + 1) / warmup_steps)
    if not decay_steps:
        return lr
    done = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
    return lr * (FLOOR_FRAC + (1 - FLOOR_FRAC) * 0.5 * (1 + math.cos(math.pi * done)))
