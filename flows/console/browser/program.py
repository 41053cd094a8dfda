"""Open a run and browse it."""

import sys
from collections.abc import Callable

from gradus.data.errors import UsageError
from gradus.flows.console.browser.lists import Browser
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.run_rows import open_run


def browse_run(home: Home, run: str, say: Callable[[str], None]) -> None:
    """Browse a run until the user leaves; UsageError if this is no terminal or there is no such run."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("browse needs a terminal", hint=f"`gradus report {run}` writes a page instead")
    with open_run(home, run, say) as rows:
        Browser(rows).run()
