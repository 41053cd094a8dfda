"""Which runs the dead left behind, and what becomes of their flow runs in Prefect."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Completed, Running

from gradus.data.runlock import run_lock
from gradus.tasks.runs.history import AGAIN
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.listing import list_runs
from gradus.tasks.servers.abandoned_runs import close_abandoned, left_behind


def launch(folder: Path, flow_run: str) -> Journal:
    journal = Journal(folder)
    journal.run_started({"run": folder.name, "prefect_flow_run_id": flow_run})
    return journal


def abandon(folder: Path) -> None:
    """Leave the lock as a killed process does: its name in it, nobody holding it."""
    (folder / ".lock").write_text('{"pid": 1}')


def test_only_runs_without_a_living_holder_are_left_behind(tmp_path: Path) -> None:
    launch(tmp_path / "dead", "a")
    abandon(tmp_path / "dead")
    ended = launch(tmp_path / "ended", "b")
    ended.run_finished(status="failed", error="no rows")
    abandon(tmp_path / "ended")
    launch(tmp_path / "odd", "d")
    abandon(tmp_path / "odd")
    (tmp_path / "odd" / "events.jsonl").write_text("no journal\n")
    launch(tmp_path / "living", "c")
    with run_lock(tmp_path / "living"):
        assert left_behind(tmp_path) == ["a"]


class Client:
    """Flow runs, the states that were set, and the flow runs that began others, by task run."""

    def __init__(self, states: dict[UUID, State[Any]], above: dict[UUID, UUID]) -> None:
        self.states, self.above = states, above

    def read_flow_run(self, flow_run: UUID) -> Any:
        if flow_run not in self.states:
            raise ObjectNotFound(Exception("gone"))
        known = {"id": flow_run, "state": self.states[flow_run], "parent_task_run_id": None}
        return type("FlowRun", (), {**known, **({"parent_task_run_id": flow_run} if flow_run in self.above else {})})

    def read_task_run(self, task_run: UUID) -> Any:
        return type("TaskRun", (), {"flow_run_id": self.above[task_run]})

    def set_flow_run_state(self, flow_run: UUID, state: State[Any], *, force: bool) -> None:
        assert force
        self.states[flow_run] = state


def test_open_flow_runs_of_the_dead_are_ended_and_others_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cancelling, completed, deleted, comparison = (uuid4() for _ in range(5))
    states = {running: Running(), cancelling: Cancelling(), completed: Completed(message="done"), comparison: Running()}
    client = Client(states, {running: comparison})

    @contextlib.contextmanager
    def connected(*, sync_client: bool) -> Iterator[Client]:
        assert sync_client
        yield client

    monkeypatch.setattr("gradus.tasks.servers.abandoned_runs.get_client", connected)
    close_abandoned([str(each) for each in (deleted, running, cancelling, completed)])
    again = "run the same command again to resume"
    assert (client.states[running].type, client.states[running].message) == (
        StateType.CRASHED,
        f"the process was killed; {again}",
    )
    assert (client.states[cancelling].type, client.states[cancelling].message) == (
        StateType.CANCELLED,
        f"cancelled; {again}",
    )
    assert client.states[completed].message == "done"
    assert client.states[comparison].type == StateType.CRASHED  # it began the training that was killed


@pytest.mark.parametrize("status", ["finished", "failed", "killed", "cancelled"])
def test_a_run_is_listed_as_it_ended_with_the_reason(tmp_path: Path, status: str) -> None:
    journal = launch(tmp_path / "one", "a")
    (tmp_path / "one" / "run.json").write_text('{"verb": "ingest"}')
    journal.run_finished(status=status, error="why")
    assert [(run["status"], run["error"]) for run in list_runs(tmp_path, tmp_path)["runs"]] == [(status, "why")]
    launch(tmp_path / "one", "b")
    assert [(run["status"], run["error"]) for run in list_runs(tmp_path, tmp_path)["runs"]] == [
        ("killed", f"the process was killed; {AGAIN}")
    ]
