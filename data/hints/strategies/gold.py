"""The answer itself as a hint, for waves that train what follows from it for the problem's own prompt."""

from gradus.components import component
from gradus.data.records import Problem


@component("hint", paper="ExPO", reveals=True, shown="The correct answer:")
def gold(problem: Problem, fraction: float) -> str | None:  # noqa: ARG001 - an answer has no parts
    """Return the gold answer as its source writes it (ExPO: the policy explains it)."""
    return problem.get("answer_given") or problem["answer"]
