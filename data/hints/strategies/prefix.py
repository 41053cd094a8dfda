"""The beginning of the worked solution as a hint, cut at step boundaries (GHPO, arXiv 2507.10628, section 3.2).

GHPO cuts at a share of the characters; cutting at steps keeps every line whole.
"""

import math

from gradus.components import component
from gradus.data.hints import NoHint
from gradus.data.hints.leaks import leaks
from gradus.data.records import Problem


@component("hint", paper="arXiv 2507.10628", version=2)
def prefix(problem: Problem, fraction: float) -> str | NoHint | None:
    """The first ceil(fraction * steps) steps, never all of them, cut back until the answer is not revealed."""
    solution, answer = problem["solution"], problem["answer"] or ""
    if not solution:
        return NoHint("no worked solution")
    steps = [line for line in solution.split("\n") if line.strip()]
    if len(steps) < 2:
        return NoHint("a single step")
    keep = min(math.ceil(fraction * len(steps)), len(steps) - 1)
    while keep > 0 and leaks("\n".join(steps[:keep]), answer, problem["question"] or ""):
        keep -= 1
    return "\n".join(steps[:keep]) + "\n" if keep else None
