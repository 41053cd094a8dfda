"""`train` as a deployment runs it: a recipe by path or name and texts, as a form has them.

The command line and `rerun` hand a whole recipe to `gradus.flows.runs.train_flow`.
"""

from typing import Any, Literal

from gradus.flows.asked import planned
from gradus.flows.console.answers import TrainAnswer
from gradus.flows.runs import train_flow
from gradus.flows.verbs import form_of, gradus_flow


@gradus_flow("train")
@form_of(planned, engine=Literal["transformers", "vllm", "openai"] | None)
def train(**given: Any) -> TrainAnswer:
    """Rounds of curate, rollout, score and update as a recipe says.

    The same parameters are the same run: an interrupted one continues where it stopped, a finished one is reused
    whole, and only what changed since (a recipe, a problem file) is computed. Files are looked for in the folder that
    `gradus serve` was started in.
    """
    plan = planned(**given)
    return train_flow.fn(plan.recipe, plan.run, like=plan.like)
