"""Open a run and browse it."""

import sys
from collections.abc import Callable

from gradus.data.errors import OnDamage, UsageError, refuse
from gradus.flows.console.browser.lists import Browser
from gradus.flows.console.browser.rows import RowBrowser
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.run_rows import open_run
from gradus.tasks.inspect.sql_views import ask
from gradus.tasks.preflight.checks import REFERENCE


def browse_run(home: Home, run: str, say: Callable[[str], None], on_damage: OnDamage = refuse) -> None:
    """Browse a run, or the rows of an artifact; UsageError if this is not a terminal or there is no such run."""
    is_artifact = bool(REFERENCE.fullmatch(run))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        instead = (
            f"`gradus show {run}` prints its first rows" if is_artifact else f"`gradus report {run}` writes a page"
        )
        raise UsageError("browse needs a terminal", hint=f"{instead} instead")
    if is_artifact:
        with ask(home, f'select * from "{run}"', None, say, on_damage) as found:  # noqa: S608 - a checked name
            RowBrowser(run, found).run()
        return
    with open_run(home, run, say, on_damage=on_damage) as rows:
        Browser(rows).run()
