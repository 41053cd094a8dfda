"""Worked solutions for reasoning-gym's chain_sum, and the text that a policy learns to write.

worked_solution("12 + 5 - 3")   # (["12+5=17", "17-3=14"], "14")
"""

import operator
import re
from collections.abc import Mapping
from typing import Any

_OPERATIONS = {"+": operator.add, "-": operator.sub}
_TERM = re.compile(r"\s*([+-])\s*(\d+)")


def worked_solution(expression: str) -> tuple[list[str], str]:
    """Evaluate a chain of sums from left to right, one step a line; raise ValueError for other expressions."""
    first = re.match(r"\s*(-?\d+)", expression)
    if first is None:
        raise ValueError(f"{expression!r} is not a chain of sums")
    total, at, steps = int(first[1]), first.end(), list[str]()
    while at < len(expression.rstrip()):
        term = _TERM.match(expression, at)
        if term is None:
            raise ValueError(f"{expression!r} is not a chain of sums")
        result = _OPERATIONS[term[1]](total, int(term[2]))
        steps.append(f"{total}{term[1]}{term[2]}={result}")
        total, at = result, term.end()
    return steps, str(total)


def problem_row(item: Mapping[str, Any]) -> dict[str, str]:
    """A generator's item with its worked solution and its number of operations as the domain."""
    steps, answer = worked_solution(item["metadata"]["expression"])
    if answer != item["answer"]:
        raise ValueError(f"the generator says {item['answer']} where the steps give {answer}")
    return {
        "question": item["question"],
        "answer": answer,
        "solution": "\n".join(steps),
        "domain": f"chain_sum/{len(steps)}",
    }
