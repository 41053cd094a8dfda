"""Parts of several stages: inputs, the columns that prompts come from, and what ends a completion."""

from typing import Annotated

from pydantic import Field

from gradus.components.stage import CHECKPOINTS, Role, Short
from gradus.data.worked import needs_answer

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


MAX_STOPS = 16
Stops = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=MAX_STOPS)]
"""Stop strings: none of them empty, at most 16."""
