"""`train` as a deployment runs it: a recipe by path or name and texts, as a form has them.

The command line and `rerun` hand a whole recipe to `gradus.flows.runs.train_flow`.
"""

from typing import Annotated, Literal

from pydantic import Field

from gradus.flows.console.answers import TrainAnswer
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import load_recipe
from gradus.flows.runs import train_flow
from gradus.flows.verbs import gradus_flow
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.checks import check_name


@gradus_flow("train")
def train(
    recipe: str,
    set: list[str] | None = None,  # noqa: A002 - called as on the command line
    rounds: Annotated[int, Field(ge=0)] | None = None,
    engine: Literal["transformers", "vllm", "openai"] | None = None,
    overlap: Annotated[int, Field(ge=0, le=1)] | None = None,
    run: str | None = None,
    method: list[str] | None = None,
) -> TrainAnswer:
    """Rounds of curate, rollout, score and update as a recipe says.

    The same parameters are the same run: an interrupted one continues where it stopped, a finished one is reused
    whole, and only what changed since (a recipe, a problem file) is computed.

    Args:
        recipe: A .toml file, relative to the folder that `gradus serve` was started in, or a bundled recipe (demo).
        set: Settings to change in the recipe, each as key=value, for example update.lr=1e-4.
        rounds: Rounds of curate, rollout, score, update; the recipe's if empty.
        engine: Engine that samples; the recipe's if empty.
        overlap: 1 generates the next round during an update; the recipe's if empty.
        run: Name of the run; the recipe's name and digest if empty.
        method: Methods laid over the recipe, each a bundled name (`gradus methods`) or a .toml file.
    """
    chosen = [*(set or []), *([f"rollout.engine={engine}"] if engine else [])]
    loaded = load_recipe(recipe, chosen, method or [], rounds=rounds, overlap=overlap)
    if run is not None:
        check_name(run, "the name of the run")
    check_recipe(loaded, Home.from_environment().lake)
    return train_flow.fn(loaded, run)
