"""The log of a run in Prefect: a line for each stage that ended.

The logger `gradus` alone reaches Prefect's pages (PREFECT_LOGGING_EXTRA_LOGGERS); nothing of it is shown at the
terminal, which has lines of its own. Only counts and sentences of ours are logged, nothing that a policy wrote.
"""

import logging
from pathlib import Path

from gradus.data.errors import in_words
from gradus.tasks.runtime.calls import Outcome

NAME = "gradus"

_log = logging.getLogger(NAME)
_log.setLevel(logging.INFO)
_log.propagate = False
# Without a handler of its own Python would print warnings to the terminal where Prefect has added none.
_log.addHandler(logging.NullHandler())


def log_outcome(outcome: Outcome, folder: Path) -> None:
    """Log how a stage ended well: computed or reused, its counts above 0, its artifact. Inside its Prefect task."""
    how = "reused" if outcome.reused else f"computed in {outcome.seconds:.1f} s"
    counts = [f"{name.replace('_', ' ')} {value:,}" for name, value in outcome.summary.items() if _is_count(value)]
    _log.info("%s: %s; %s", outcome.label, how, ", ".join([*counts, str(folder)]))


def log_failure(error: Exception) -> None:
    """Log the sentence of a stage that failed. Inside its Prefect task."""
    _log.error("%s", in_words(error))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value != 0
