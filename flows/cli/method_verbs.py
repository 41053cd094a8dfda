"""The verbs about the parts of a run: methods, settings, new."""

from pathlib import Path
from typing import Annotated

import typer

from gradus.data.errors import UsageError
from gradus.data.nearest import did_you_mean
from gradus.flows.cli import options
from gradus.flows.cli.options import AsJson
from gradus.flows.console.output import answer


def methods(
    word: Annotated[
        str, typer.Argument(help="a name, or a word in names, sentences, formulas", autocompletion=options.methods)
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
    stage: Annotated[str, typer.Argument(help="the stage", autocompletion=options.stages)] = "",
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


def new(
    kind: Annotated[str, typer.Argument(help="filter, reward, advantage, loss ... (gradus methods)")],
    name: Annotated[str, typer.Argument(help="its name, in lower case with underscores")],
    as_json: AsJson = False,
) -> None:
    """Write a component of your own into this folder: its function, its test and its method, ready to run."""
    from gradus.flows.library.new_component import write_component

    files = [file.name for file in write_component(kind, name, Path())]
    commands = {"test": f"pytest {files[1]}", "try": f"gradus train demo --method {files[2]} --dry-run"}
    answer({"files": files, **commands}, as_json)
