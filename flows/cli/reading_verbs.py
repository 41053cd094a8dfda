"""The verbs that show what a run did: report and browse."""

from pathlib import Path
from typing import Annotated

import typer

from gradus.flows.cli.partial import Partial, damage
from gradus.flows.cli.run_verbs import KnownRun, RunOrArtifact
from gradus.flows.cli.stage_verbs import AsJson
from gradus.flows.console.output import answer, aside, line
from gradus.tasks.config.settings import Home


def report(
    run: KnownRun,
    out: Annotated[Path, typer.Option(help="the page to write; replaced if it is there")] = Path("report.html"),
    pictures: Annotated[Path | None, typer.Option(help="folder for its pictures as PNG files")] = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Write what a run did as one HTML page: curves, difficulty, hints, time, what was solved and lost, samples.

    The page loads nothing from anywhere and runs no script; what a policy wrote is text in it.
    """
    from gradus.tasks.inspect.report.writing import write_report

    with damage(partial) as on_damage:
        home = Home.from_environment()
        files = write_report(home, run, out.absolute(), aside, pictures=pictures, on_damage=on_damage)

        def render(_: object) -> None:
            for path in files:
                line(str(path))

        answer({"files": [str(path) for path in files]}, as_json, render)


def browse(run: RunOrArtifact, partial: Partial = False) -> None:
    """Look through a run in the terminal: rounds, problems, groups side by side, a problem between two rounds.

    Of an artifact: its rows.
    """
    from gradus.flows.console.browser.program import browse_run

    with damage(partial) as on_damage:
        browse_run(Home.from_environment(), run, aside, on_damage)


def register_reading(app: typer.Typer) -> None:
    """Add these verbs to the program."""
    for verb in (report, browse):
        app.command(verb.__name__)(verb)
