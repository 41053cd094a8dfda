"""What a killed process leaves behind in Prefect: a run that says RUNNING for ever. The next start closes it.

MLflow's part is closed by the reporter, which outlives the flow (tasks.tracking); the server leaves by itself when
nobody uses it (tasks.found_servers).
"""

import contextlib
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from tasks.journal import read_events
from tasks.runlock import holder, left_by_the_dead


def close_dangling(runs: Path) -> list[str]:
    """Mark the Prefect runs of dead processes Crashed; gives the runs' names."""
    dead = [folder for folder in runs.glob("*") if left_by_the_dead(folder)]
    if dead:
        with get_client(sync_client=True) as client:
            for folder in dead:
                _crash(client, folder)
    return [folder.name for folder in dead]


def _crash(client: SyncPrefectClient, folder: Path) -> None:
    if holder(folder) is not None:
        return
    for flow_run_id in _unfinished(folder):
        with contextlib.suppress(ObjectNotFound):
            run = client.read_flow_run(UUID(flow_run_id))
            if run.state is not None and not run.state.is_final():
                state = Crashed(message="the process was killed; the same command goes on where it stopped")
                client.set_flow_run_state(run.id, state, force=True)


def _unfinished(folder: Path) -> list[str]:
    """Prefect ids of launches that began and never said how they ended."""
    started = [e.get("prefect_flow_run_id", "") for e in read_events(folder) if e["event"] == "run_started"]
    ended = sum(event["event"] == "run_finished" for event in read_events(folder))
    return [flow_run_id for flow_run_id in started if flow_run_id] if len(started) > ended else []
