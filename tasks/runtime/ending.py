"""The journal's status and sentence of an attempt or a run that did not finish."""

import signal

from prefect._internal.control_listener import get_intent
from prefect.exceptions import TerminationSignal

from gradus.data.errors import GradusError, in_words
from gradus.tasks.host.interrupt import interrupted_by
from gradus.tasks.runs.history import AGAIN
from gradus.tasks.runs.records import Status
from gradus.tasks.runtime.supervise import HaltedError


def ending(error: BaseException) -> tuple[Status, str]:
    """Return the status and the sentence of an attempt that raised `error`.

    Prefect turns SIGTERM into TerminationSignal; only its runner's own request, which comes before the signal, is a
    cancellation. That request has no public reader in Prefect 3.7. A library that the signal interrupts may raise
    something else (pydantic: SchemaError), so a request counts whatever foreign error it ends in.
    """
    match error:
        case HaltedError():
            return "killed", str(error)
        case GradusError():
            return "failed", str(error)
        case KeyboardInterrupt():
            return (
                "killed",
                f"{'ended by SIGTERM' if interrupted_by() == signal.SIGTERM else 'stopped by Ctrl-C'}; {AGAIN}",
            )
        case _ if get_intent() == "cancel":
            return "cancelled", f"cancelled in Prefect; {AGAIN}"
        case TerminationSignal():
            return "killed", f"ended by SIGTERM; {AGAIN}"
        case _:
            return "failed", str(in_words(error))
