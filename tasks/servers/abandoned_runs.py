"""Runs that a killed process leaves in Prefect's state Running for ever.

    left = left_behind(home.runs)           # before a run of one's own begins
    close_abandoned(left)
    close_unbegun(deployments)              # what a killed `gradus serve` had taken and not begun

The next start closes all of it. MLflow's part is closed by the reporter, which outlives the flow
(gradus.tasks.tracking.reporter); its keeper ends the server when it is idle (gradus.tasks.servers.keeper).
"""

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from gradus.data.errors import CorruptArtifactError
from gradus.data.runlock import left_by_the_dead
from gradus.tasks.runs.history import AGAIN
from gradus.tasks.runs.journal import read_events

_FLOW_RUN = "PREFECT__FLOW_RUN_ID"


def left_behind(runs: Path) -> list[str]:
    """Return Prefect's ids of the launches of runs whose process died holding them; unreadable ones are skipped."""
    found: list[str] = []
    for folder in runs.glob("*"):
        with contextlib.suppress(CorruptArtifactError, OSError):
            if left_by_the_dead(folder):
                launches = _unfinished(folder)
                if left_by_the_dead(folder):  # checked again: no process took it while its journal was read
                    found += launches
    return found


def close_abandoned(left: Sequence[str]) -> None:
    """End flow runs of dead processes in Prefect, by their ids."""
    if not left:
        return
    why = f"the process was killed; {AGAIN}"
    with get_client(sync_client=True) as client:
        for flow_run_id in left:
            with contextlib.suppress(ObjectNotFound):
                flow_run = client.read_flow_run(UUID(flow_run_id))
                _end(client, flow_run, why)
                if flow_run.parent_task_run_id:  # of a comparison, whose process ended with that of its training
                    above = client.read_task_run(flow_run.parent_task_run_id).flow_run_id
                    if above:
                        _end(client, client.read_flow_run(above), why)


def close_unbegun(deployments: Collection[UUID]) -> None:
    """End the flow runs of these deployments that no process works on and no journal knows.

    A server that was killed between taking a run and its first line leaves it Pending. One that another machine is
    about to begin is only called Crashed until it begins.
    """
    pending = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.PENDING]}}})
    of = DeploymentFilter(id=DeploymentFilterId(any_=list(deployments)))
    begun = _worked_on()
    with get_client(sync_client=True) as client:
        for flow_run in client.read_flow_runs(flow_run_filter=pending, deployment_filter=of):
            if str(flow_run.id) not in begun:
                _end(client, flow_run, "the process was killed before the run began; start it again")


def _end(client: SyncPrefectClient, flow_run: FlowRun, why: str) -> None:
    state = flow_run.state
    if state is not None and not state.is_final():
        ended = Cancelled(message=f"cancelled; {AGAIN}") if state.is_cancelling() else Crashed(message=why)
        client.set_flow_run_state(flow_run.id, ended, force=True)


def _unfinished(folder: Path) -> list[str]:
    """Return the Prefect ids of launches without a recorded end."""
    started = [e.get("prefect_flow_run_id", "") for e in read_events(folder) if e["event"] == "run_started"]
    ended = sum(event["event"] == "run_finished" for event in read_events(folder))
    return [*filter(None, started)] if len(started) > ended else []


def _worked_on() -> set[str]:
    """The flow runs that a process of this user on this machine was started for."""
    found: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                found.add(process.environ().get(_FLOW_RUN, ""))
    return found
