"""The beginning of the worked solution as a hint, cut at step boundaries (GHPO, arXiv 2507.10628, section 3.2).

GHPO cuts at a share of the characters; cutting at steps keeps every line whole.
"""

import math
from collections.abc import Mapping
from typing import Any

from gradus.data.hints.leaks import leaks


def prefix(problem: Mapping[str, Any], fraction: float) -> str | None:
    """The first ceil(fraction * steps) steps, never all of them, cut back until the answer is not revealed."""
    solution, answer = problem["solution"], problem["answer"]
    if not solution or answer is None:
        return None
    steps = [line for line in solution.split("\n") if line.strip()]
    keep = min(math.ceil(fraction * len(steps)), len(steps) - 1)
    while keep > 0 and leaks("\n".join(steps[:keep]), answer, problem["question"] or ""):
        keep -= 1
    return "\n".join(steps[:keep]) + "\n" if keep else None
