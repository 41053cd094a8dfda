r"""Prompt of a question: a system message, and a template with the places of the question and its hint.

    filled("Question: {question}\nAnswer:", "1 + 2 =")     # "Question: 1 + 2 =\nAnswer:"

A template is text, not a program: placeholders are replaced once and literally, whatever braces the rest of it, the
question or the hint has.
"""

import re
from dataclasses import dataclass

QUESTION, HINT = "question", "hint"
_PLACES = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
_ARGUMENT = re.compile(r"(?:\\[A-Za-z]+(?:\[[^\]]*\])?(?:\{[^{}]*\})*|[\\^_])\Z")
"""Text before the braces of an argument in LaTeX: a command with its other arguments, a power, an index."""


@dataclass(frozen=True)
class PromptStyle:
    """A system message and a template, each empty for none; see gradus.tasks.config.prompts.PromptConfig."""

    system: str = ""
    template: str = ""

    @property
    def places_hint(self) -> bool:
        """Return whether the template says where the hint goes."""
        return HINT in _named(self.template)


PLAIN = PromptStyle()
"""The question as it is."""


def filled(template: str, question: str, hint: str = "") -> str:
    r"""Return the template with its question and its hint, and `{name}` for every `{{name}}`.

    >>> filled("{question} Use \\frac{a}{b} or {{x}}. {hint}", "{hint}?", "{question}")
    '{hint}? Use \\frac{a}{b} or {x}. {question}'
    """
    values = {QUESTION: question, HINT: hint}

    def put(match: re.Match[str]) -> str:
        literal, name = match.groups()
        return f"{{{literal}}}" if literal else values.get(name, match[0])

    return _PLACES.sub(put, template)


def template_problem(template: str) -> str:
    r"""Return what is wrong with a template, empty for nothing.

    A name in braces that is not a placeholder is refused, unless it is an argument in LaTeX, as in `\boxed{answer}`.

    >>> template_problem("Q: {problem}")
    'has the unknown placeholder {problem}; there are {question} and {hint}, and {{problem}} is {problem} literally'
    """
    for match in _PLACES.finditer(template):
        name = match[2]
        if name and name not in (QUESTION, HINT) and not _ARGUMENT.search(template[: match.start()]):
            return (
                f"has the unknown placeholder {{{name}}}; there are {{{QUESTION}}} and {{{HINT}}}, "
                f"and {{{{{name}}}}} is {{{name}}} literally"
            )
    if QUESTION not in _named(template):
        return f"has no {{{QUESTION}}}, so every prompt would be the same"
    return ""


def system_problem(system: str) -> str:
    """Return what is wrong with a system message, empty for nothing: it is the same for all problems."""
    found = [name for name in (QUESTION, HINT) if name in _named(system)]
    return f"has {{{found[0]}}}, which only the template may have" if found else ""


def _named(template: str) -> list[str]:
    return [match[2] for match in _PLACES.finditer(template)]
