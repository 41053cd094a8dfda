"""The verbs about what a run can be made of: methods, settings."""

from typing import Annotated

import typer

from gradus.data.errors import UsageError
from gradus.data.nearest import did_you_mean
from gradus.flows.cli import completion
from gradus.flows.cli.stage_verbs import AsJson
from gradus.flows.console.output import answer


def methods(
    word: Annotated[
        str, typer.Argument(help="a name, or a word in names, sentences, formulas", autocompletion=completion.methods)
    ] = "",
    kind: Annotated[str, typer.Option(help="of this kind: method, loss, advantage, filter, reward ...")] = "",
    paper: Annotated[str, typer.Option(help="of this paper, such as 2402.03300")] = "",
    as_json: AsJson = False,
) -> None:
    """List methods and components, by stage; of a NAME the formula, deviations, settings, file, test and a command.

    A method is laid over a recipe: `gradus train RECIPE --method NAME`. A component is named by a setting.
    """
    from gradus.flows.console.methods_table import render_methods
    from gradus.flows.recipe.method_list import selected

    answer(selected(word, kind, paper), as_json, lambda found: render_methods(found, word))


def settings(
    stage: Annotated[str, typer.Argument(help="the stage", autocompletion=completion.stages)] = "",
    as_json: AsJson = False,
) -> None:
    """List the settings of the stages, or of one, with type, default and text."""
    from gradus.flows.console.methods_table import render_settings
    from gradus.tasks.inspect.catalogue import catalogue

    stages = catalogue()["stage"]
    if stage and stage not in stages:
        hint = did_you_mean(stage, list(stages), f"the stages are {', '.join(stages)}")
        raise UsageError(f"there is no stage {stage!r}", hint=hint)
    answer({stage: stages[stage]} if stage else stages, as_json, render_settings)


def register_methods(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    for verb in (methods, settings):
        app.command(verb.__name__)(verb)
