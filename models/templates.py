r"""Prompt of a question: a system message, and a template with the places of the question and its hint.

    filled("Question: {question}\nAnswer:", "1 + 2 =")     # "Question: 1 + 2 =\nAnswer:"

A template is text, not a program: placeholders are replaced once and literally, whatever braces the rest of it, the
question or the hint has.
"""

from pydantic import Field, field_validator

from gradus.components import templates
from gradus.components.settings import Config, empty
from gradus.components.templates import places, unknown_place

QUESTION, HINT = "question", "hint"


class PromptConfig(Config):
    """Prompt of a problem, beside what the policy's own chat template does."""

    system: str = Field(default="", exclude_if=empty)
    """System message, unless a problem has its own; without a chat template the prompt's first paragraph."""
    template: str = Field(default="", exclude_if=empty)
    """The user's message, with {question}; {hint}, if present, is the hint, or nothing for problems without one.

    Of a problem with messages {question} is the user's last one. Without {hint} the hint follows at the end. A name in
    other braces is refused, unless it is an argument in LaTeX; {{name}} is {name} literally.
    """

    @field_validator("system")
    @classmethod
    def _is_the_same_for_all(cls, system: str) -> str:
        found = [name for name in (QUESTION, HINT) if name in places(system)]
        if found:
            raise ValueError(f"the system message has {{{found[0]}}}, which only the template may have")
        return system

    @field_validator("template")
    @classmethod
    def _has_a_question(cls, template: str) -> str:
        fault = unknown_place(template, (QUESTION, HINT))
        if template and not fault and QUESTION not in places(template):
            fault = f"has no {{{QUESTION}}}, so every prompt would be the same"
        if fault:
            raise ValueError(f"the template {fault}")
        return template

    @property
    def places_hint(self) -> bool:
        """Return whether the template says where the hint goes."""
        return HINT in places(self.template)


PLAIN = PromptConfig()
"""The question as it is."""


def filled(template: str, question: str, hint: str = "") -> str:
    r"""Return the template with its question and its hint, and `{name}` for every `{{name}}`.

    >>> filled("{question} Use \\frac{a}{b} or {{x}}. {hint}", "{hint}?", "{question}")
    '{hint}? Use \\frac{a}{b} or {x}. {question}'
    """
    return templates.filled(template, question=question, hint=hint)
