r"""Training target made of a worked solution: the solution as it stands, or a template that places it.

worked_text("{solution}\n#### {answer}", "8+5=13", "13")      # "8+5=13\n#### 13"
"""

import re

AS_IT_STANDS = "{solution}"
_PLACES = re.compile(r"\{(solution|answer)\}")


def worked_text(template: str, solution: str, answer: str | None) -> str:
    """Return the template with the solution and the answer, whatever braces those have."""
    values = {"solution": solution, "answer": answer or ""}
    return _PLACES.sub(lambda match: values[match[1]], template)


def needs_answer(template: str) -> bool:
    """Return whether a template can be filled only if there is an answer."""
    return "{answer}" in template
