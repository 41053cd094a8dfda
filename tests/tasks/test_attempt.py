"""One attempt of a stage: alone on its artefact, and never a second time what another process finished meanwhile."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from data.errors import LockedError
from data.store import Ref, Store
from tasks.attempt import Job, execute, read_report
from tasks.config import CurateConfig
from tasks.runlock import RunLock

REF = Ref("plan", "0123456789abcdef" * 2)


def job(root: Path) -> Job:
    problems = Store(root).put("problems", pa.table({"problem_id": ["a", "b"], "question": ["1 + 1 =", "2 + 2 ="]}))
    config = CurateConfig().model_dump(mode="json")
    return Job("curate", str(root), str(REF), {"problems": [str(problems)]}, config, seed=1)


def never(frac: float, _text: str = "") -> None:
    raise AssertionError(f"something is computed: {frac}")


def test_an_artefact_that_another_process_makes_is_left_to_it(tmp_path: Path) -> None:
    todo = job(tmp_path).to_json()
    store = Store(tmp_path)
    with RunLock(store.path(REF)), pytest.raises(LockedError, match=f"in use by process {os.getpid()}") as caught:
        execute(todo, {}, never)
    assert "another command computes the same" in str(caught.value)
    assert store.find(REF) is None


def test_what_was_finished_meanwhile_is_taken_as_it_is(tmp_path: Path) -> None:
    todo = job(tmp_path).to_json()
    first = execute(todo, {}, lambda frac, text="": None)
    assert first["metrics"]["perf/compute_s"] > 0
    kept = read_report(Store(tmp_path), REF)
    assert execute(todo, {}, never) == kept
    assert kept["summary"] == first["summary"]
    assert "perf/compute_s" not in kept["metrics"]
