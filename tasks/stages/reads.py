"""The only columns that a stage reads of an input, by role: a change of others does not change its result.

A stage takes its columns from here, and its identity goes by their values (gradus.tasks.runtime.calls). Of a role that
is not named every byte counts.
"""

from collections.abc import Mapping

from gradus.components.settings import Config
from gradus.data.sources.worked import needs_answer
from gradus.tasks.config.learning import GivenConfig, UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig

PROMPT = ("problem_id", "question", "messages")
ROLLOUT = {
    "plan": ("problem_id", "group_id", "n", "hint_level", "hint_text", "temperature", "max_tokens", "seed"),
    "problems": PROMPT,
}
UPDATE = {"scores": ("rollout_id", "reward", "correct")}


def worked(template: str) -> tuple[str, ...]:
    """Return the columns of problems that prompts and worked solutions come from."""
    return (*PROMPT, "solution", *(("answer", "answer_given") if needs_answer(template) else ()))


def columns_read(config: Config) -> Mapping[str, tuple[str, ...]]:
    """Return the columns that the stage of these settings reads, by role."""
    match config:
        case RolloutConfig():
            return ROLLOUT
        case UpdateConfig():
            return UPDATE
        case GivenConfig(rows=rows, template=template):
            return {"problems": PROMPT if rows else worked(template)}
        case WarmstartConfig(template=template):
            return {"problems": worked(template)}
        case _:
            return {}
