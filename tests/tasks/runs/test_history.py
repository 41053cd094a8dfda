"""What a list of runs says of each: as the journal and the manifests have it, and the same from what was kept of it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.store import Ref, Store
from gradus.data.runlock import RunLock
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import AGAIN, list_runs, read_run
from gradus.tasks.runs.journal import EVENTS, Journal

DIGESTS = {name: digit * 32 for name, digit in (("rollout", "a"), ("before", "b"), ("after", "c"), ("update", "d"))}
KEPT = ".summary.json"


class Place:
    """A home with one training run, whose artifacts are real."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.store = Store(self.home.lake)
        self.folder = self.home.runs / "demo-1"
        self.journal = Journal(self.folder)
        (self.folder / "run.json").write_text('{"verb": "train"}')
        self.journal.run_started({"run": "demo-1", "verb": "train"})

    def artifact(self, table: str, digest: str, num_bytes: int, report: dict[str, Any] | None = None) -> str:
        writer = self.store.writer(Ref(table, digest))
        writer.write_file("model.safetensors", b"x" * num_bytes)
        writer.write_file("_report.json", json.dumps(report or {}).encode())
        writer.commit()
        return f"{table}/{digest}"

    def stage(self, stage: str, output: str, round_: int = 1, purpose: str = "train", **ended: Any) -> None:
        attempt = self.journal.stage_started(
            stage=stage, round=round_, purpose=purpose, output=output, config={}, inputs={}
        )
        if ended:
            self.journal.stage_finished(attempt, seconds=1.0, **ended)

    def evaluated(self, digest: str, round_: int, pass_at_1: float, purpose: str = "eval") -> None:
        output = self.artifact("evaluations", digest, 10, {"summary": {"pass_at": {"1": {"value": pass_at_1}}}})
        report = {"summary": {"pass_at": {"1": {"value": pass_at_1}}}}
        self.stage("evaluate", output, round_, purpose, status="finished", report=report)

    def listed(self) -> dict[str, Any]:
        return list_runs(self.home.runs, self.home.lake)

    def run(self) -> dict[str, Any]:
        (run,) = self.listed()["runs"]
        return run


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def on_disk(*folders: Path) -> int:
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def test_a_run_has_its_gain_its_date_and_the_bytes_that_lie_on_the_disk(place: Place) -> None:
    began = time.time()
    place.evaluated(DIGESTS["before"], 0, 0.25)
    place.evaluated("e" * 32, 0, 0.9, purpose="eval-validation")
    place.stage("update", place.artifact("checkpoints", DIGESTS["update"], 5000), status="finished")
    place.evaluated(DIGESTS["after"], 4, 0.75)
    place.journal.run_finished(status="finished")
    first = place.listed()
    (run,) = first["runs"]
    assert run["gain"] == pytest.approx(0.5)
    assert run["started"] == pytest.approx(began, abs=60)
    lake = place.home.lake
    sizes = {table: on_disk(lake / table) for table in ("checkpoints", "evaluations")}
    assert first["bytes_by_table"] == sizes
    assert run["bytes"] == first["bytes"] == sum(sizes.values())
    assert place.listed() == first
    shown = read_run(place.home.runs, "demo-1", lake)
    assert shown["bytes_by_table"] == sizes
    assert [row["bytes"] for row in shown["attempts"]][2] == sizes["checkpoints"]


def test_the_evaluation_that_was_reused_counts_by_its_report_and_a_deleted_artifact_is_missed(place: Place) -> None:
    report = {"summary": {"pass_at": {"1": {"value": 0.5}}}}
    kept = place.artifact("evaluations", DIGESTS["before"], 10, report)
    place.journal.stage_reused(stage="evaluate", round=0, purpose="eval", output=kept)
    place.evaluated(DIGESTS["after"], 2, 0.25)
    assert place.run()["gain"] == pytest.approx(-0.25)
    before = place.run()["bytes"]
    for path in (place.home.lake / kept).iterdir():
        path.unlink()
    (place.home.lake / kept).rmdir()
    for _ in range(2):
        with pytest.raises(CorruptArtifactError, match=f"{kept} is missing.*; `gradus train demo-1` computes it again"):
            place.run()
    said = list[str]()
    (run,) = list_runs(place.home.runs, place.home.lake, lambda damage: said.append(damage.message))["runs"]
    assert said == [f"{kept} is missing: run demo-1 made, reused or read it"]
    assert run["gain"] == pytest.approx(-0.25)
    assert 0 < run["bytes"] < before


def test_artifacts_that_runs_share_count_once_in_the_sum(place: Place) -> None:
    shared = place.artifact("checkpoints", DIGESTS["update"], 5000)
    place.stage("update", shared, status="finished")
    other = Place(place.home.root)
    other.folder = place.home.runs / "demo-2"
    other.journal = Journal(other.folder)
    (other.folder / "run.json").write_text('{"verb": "train"}')
    other.journal.stage_reused(stage="update", round=1, purpose="train", output=shared)
    found = place.listed()
    assert [run["bytes"] for run in found["runs"]] == [found["bytes"]] * 2


WAYS: list[tuple[str, Callable[[Place], None], str, str]] = [
    ("failed", lambda p: p.journal.run_finished(status="failed", error="no reward"), "failed", "no reward"),
    ("cancelled", lambda p: p.journal.run_finished(status="cancelled", error="stopped"), "cancelled", "stopped"),
    ("killed", lambda _: None, "killed", f"the process was killed during rollout of round 3; {AGAIN}"),
]


@pytest.mark.parametrize(("end", "status", "error"), [way[1:] for way in WAYS], ids=[way[0] for way in WAYS])
def test_a_run_that_did_not_finish_says_why(
    place: Place, end: Callable[[Place], None], status: str, error: str
) -> None:
    place.stage("rollout", f"rollouts/{DIGESTS['rollout']}", 3)
    end(place)
    for _ in range(2):
        run = place.run()
        assert (run["status"], run["error"]) == (status, error)
    (attempt,) = read_run(place.home.runs, "demo-1", place.home.lake)["attempts"]
    assert attempt["status"] == "killed"


def test_a_run_at_work_is_running_and_killed_once_its_lock_is_free(place: Place) -> None:
    place.stage("rollout", f"rollouts/{DIGESTS['rollout']}", 3)
    with RunLock(place.folder):
        assert (place.run()["status"], place.run()["error"]) == ("running", "")
    assert place.run()["status"] == "killed"


def test_what_was_kept_is_used_until_the_journal_grows(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.stage("rollout", place.artifact("rollouts", DIGESTS["rollout"], 10), status="finished")
    first = place.listed()

    def unread(*_: Any) -> Any:
        raise AssertionError("the journal was read")

    with monkeypatch.context() as patch:
        patch.setattr("gradus.tasks.runs.history.read_events", unread)
        assert place.listed() == first
    place.journal.run_finished(status="failed", error="why")
    assert (place.run()["status"], place.run()["error"]) == ("failed", "why")
    (place.folder / "run.json").write_text('{"verb": "demo"}')
    assert place.run()["verb"] == "demo"


@settings(max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_damaged_in_what_was_kept_is_read_anew(place: Place, data: st.DataObject) -> None:
    kept = place.folder / KEPT
    if not kept.exists():
        place.stage("rollout", place.artifact("rollouts", DIGESTS["rollout"], 10), status="finished")
        place.journal.run_finished(status="finished")
    first = place.listed()
    whole = bytearray(kept.read_bytes())
    match data.draw(st.sampled_from(("flip", "cut", "other"))):
        case "flip":
            at = data.draw(st.integers(0, 8 * len(whole) - 1))
            whole[at // 8] ^= 1 << at % 8
        case "cut":
            whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
        case _:
            whole = bytearray(data.draw(st.binary(max_size=40)))
    kept.write_bytes(whole)
    assert place.listed() == first
    assert json.loads(kept.read_bytes().partition(b"\n")[2])["facts"]["brief"]["status"] == "finished"


def test_a_run_folder_that_cannot_be_written_is_listed_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "not yours")

    with monkeypatch.context() as patch:  # root, as CI may be, could write a read-only folder
        patch.setattr("pathlib.Path.write_bytes", refuse)
        assert place.run()["status"] == "killed"
    assert not (place.folder / KEPT).exists()
    assert {path.name for path in place.folder.iterdir()} == {EVENTS, "run.json"}
