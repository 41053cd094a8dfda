"""Parts of several stages: inputs, how a problem becomes a prompt, and what ends its completion."""

from typing import Annotated

from pydantic import Field, field_validator

from gradus.components.settings import Config, empty
from gradus.components.stage import CHECKPOINTS, Role, Short
from gradus.data.worked import needs_answer
from gradus.models.templates import PromptStyle, system_problem, template_problem

PROBLEMS = Role("problems", "problems: a file, an artifact, bundled:train or bundled:heldout")
POLICY = Role(
    "policy", "policy: bundled, a folder, a checkpoint artifact, or id@revision", CHECKPOINTS, default="bundled"
)
MAPS = Short("columns", "rename a column, ours=theirs; repeatable", "--map", list[str], read="names")
PROMPT_COLUMNS = ("problem_id", "question", "messages")
"""The columns of problems that prompts come from."""


def counting(used: str) -> Role:
    """The policy that prompts are tokenised by, for a stage that counts tokens if its property `used` says so."""
    return Role("policy", "policy whose tokens of a prompt count", CHECKPOINTS, default=None, used=used)


def worked_columns(template: str) -> tuple[str, ...]:
    """Return the columns of problems that prompts and worked solutions come from."""
    return (*PROMPT_COLUMNS, "solution", *(("answer", "answer_given") if needs_answer(template) else ()))


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
        if problem := system_problem(system):
            raise ValueError(f"the system message {problem}")
        return system

    @field_validator("template")
    @classmethod
    def _has_a_question(cls, template: str) -> str:
        if template and (problem := template_problem(template)):
            raise ValueError(f"the template {problem}")
        return template

    @property
    def style(self) -> PromptStyle:
        """The same for what makes prompts."""
        return PromptStyle(self.system, self.template)


MAX_STOPS = 16
Stops = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=MAX_STOPS)]
"""Stop strings: none of them empty, at most 16."""
