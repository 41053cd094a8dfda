"""A run that reuses an artifact and one that deletes it: whichever holds the artifact's lock first."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from gradus.data.lake.store import Store
from gradus.data.runlock import run_lock
from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.runs.journal import Journal, read_events
from gradus.tasks.runtime import stage_adapter
from gradus.tasks.runtime.calls import Call, Outcome
from gradus.tasks.runtime.stage_adapter import Session
from gradus.tasks.runtime.supervise import WorkerPool


def test_what_was_deleted_after_it_was_found_is_computed_again(tmp_path: Path) -> None:
    store, waits = Store(tmp_path / "lake"), threading.Event()
    problems = store.put("problems", pa.table({"problem_id": ["a"], "question": ["1 + 1 ="], "answer": ["2"]}))
    call = Call("curate", CurateConfig(), {"problems": [problems]})
    with WorkerPool(tmp_path / "logs", {}) as pool:
        session = Session(store, Journal(tmp_path / "runs" / "mine"), pool, 1, on_wait=lambda _text: waits.set())

        def outcome() -> Outcome:
            return stage_adapter._outcome(session, call)  # pyright: ignore[reportPrivateUsage] - a stage without Prefect

        made = outcome()
        assert [made.reused, outcome().reused] == [False, True]
        with ThreadPoolExecutor(1) as threads:
            with run_lock(store.path(made.ref)):
                again = threads.submit(outcome)
                assert waits.wait(30)
                store.discard(made.ref)
                shutil.rmtree(store.path(made.ref))
            assert not again.result().reused
    assert store.find(made.ref) is not None
    events = [event["event"] for event in read_events(session.journal.folder)]
    assert events == ["stage_started", "stage_finished", "stage_reused", "stage_started", "stage_finished"]
