"""Lines that `gradus serve` prints: one when a run starts, and one when it ends, by its name in `gradus runs`.

Prefect calls `say_ended` in the process of the run, or in that of `serve` for one that was killed or cancelled. The
runs of commands are not those of deployments, and print nothing here.
"""

from typing import Any

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.flows import Flow

from gradus.flows.console.output import line
from gradus.tasks.config.settings import Home

_started: set[str] = set()


def say_started(name: str) -> None:
    """Print, once for a flow run, that the run of a deployment started."""
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    if flow_run is not None and flow_run.deployment_id and str(flow_run.id) not in _started:
        _started.add(str(flow_run.id))
        line(f"{name}: started")


def say_ended(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Print how the run of a deployment ended: of one that failed why, and what to type next."""
    if flow_run.deployment_id is None:
        return
    with get_client(sync_client=True) as client:
        name = client.read_flow_run(flow_run.id).name  # the name that it was given since it began
    line(f"{name}: {_how(state)}{_next(flow.name, name) if state.is_failed() or state.is_crashed() else ''}")


def _how(state: State[Any]) -> str:
    """Return the outcome of a run, with the error message of one that failed."""
    if state.is_completed():
        return "finished"
    if state.is_cancelling() or state.is_cancelled():
        return "cancelled"
    why = " ".join((state.message or "").split())
    return f"failed: {why}" if state.is_failed() else f"ended unexpectedly: {why}"


def _next(verb: str, run: str) -> str:
    """Return the command to type next about a run that failed; nothing if it never began."""
    if not (Home.from_environment().runs / run / "run.json").is_file():
        return ""
    return f"; see `gradus {'report' if verb == 'train' else 'show'} {run}`"
