r"""Prompt of a question: a system message, and a template with the places of the question and its hint.

    filled("Question: {question}\nAnswer:", "1 + 2 =")     # "Question: 1 + 2 =\nAnswer:"

A template is text, not a program: placeholders are replaced once and literally, whatever braces the rest of it, the
question or the hint has.
"""

from dataclasses import dataclass

from gradus.components import templates
from gradus.components.templates import places, unknown_place

QUESTION, HINT = "question", "hint"


@dataclass(frozen=True)
class PromptStyle:
    """A system message and a template, each empty for none; see gradus.tasks.config.prompts.PromptConfig."""

    system: str = ""
    template: str = ""

    @property
    def places_hint(self) -> bool:
        """Return whether the template says where the hint goes."""
        return HINT in places(self.template)


PLAIN = PromptStyle()
"""The question as it is."""


def filled(template: str, question: str, hint: str = "") -> str:
    r"""Return the template with its question and its hint, and `{name}` for every `{{name}}`.

    >>> filled("{question} Use \\frac{a}{b} or {{x}}. {hint}", "{hint}?", "{question}")
    '{hint}? Use \\frac{a}{b} or {x}. {question}'
    """
    return templates.filled(template, question=question, hint=hint)


def template_problem(template: str) -> str:
    r"""Return what is wrong with a template, empty for nothing.

    A name in braces that is not a placeholder is refused, unless it is an argument in LaTeX, as in `\boxed{answer}`.

    >>> template_problem("Q: {problem}")
    'has the unknown placeholder {problem}; there are {question} and {hint}, and {{problem}} is {problem} literally'
    """
    if found := unknown_place(template, (QUESTION, HINT)):
        return found
    return "" if QUESTION in places(template) else f"has no {{{QUESTION}}}, so every prompt would be the same"


def system_problem(system: str) -> str:
    """Return what is wrong with a system message, empty for nothing: it is the same for all problems."""
    found = [name for name in (QUESTION, HINT) if name in places(system)]
    return f"has {{{found[0]}}}, which only the template may have" if found else ""
