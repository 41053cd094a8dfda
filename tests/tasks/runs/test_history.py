"""What a list of runs says of each: as journal and manifests have it, and the same from the last line alone."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.manifest import POINTER
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import state_ref
from gradus.data.runlock import run_lock
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import AGAIN
from gradus.tasks.runs.journal import EVENTS, Journal
from gradus.tasks.runs.listing import done_of, list_runs, read_run

DIGESTS = {name: digit * 32 for name, digit in (("rollout", "a"), ("before", "b"), ("after", "c"), ("update", "d"))}


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
        if table == "checkpoints":
            writer.write_file(POINTER, b"{}")
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


def end(place: Place, **ended: Any) -> None:
    """End the command as a session does."""
    place.journal.run_finished(**ended, so_far=done_of(place.folder, place.store))


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
    assert {row["run"] for row in shown["attempts"]} == {"demo-1"}
    before, _, update, after = (row["summary"] for row in shown["attempts"])
    assert (before, update, after) == ({"pass_at": {"1": {"value": 0.25}}}, {}, {"pass_at": {"1": {"value": 0.75}}})


def test_the_evaluation_that_was_reused_counts_by_its_report_and_a_deleted_artifact_is_missed(place: Place) -> None:
    report = {"summary": {"pass_at": {"1": {"value": 0.5}}}}
    kept = place.artifact("evaluations", DIGESTS["before"], 10, report)
    place.journal.stage_reused(stage="evaluate", round=0, purpose="eval", output=kept)
    place.evaluated(DIGESTS["after"], 2, 0.25)
    assert place.run()["gain"] == pytest.approx(-0.25)
    end(place, status="finished")
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
    with run_lock(place.folder):
        assert (place.run()["status"], place.run()["error"]) == ("running", "")
    assert place.run()["status"] == "killed"


def test_a_run_that_ended_is_listed_from_its_last_line_as_from_all_lines(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.evaluated(DIGESTS["before"], 0, 0.25)
    place.stage("rollout", place.artifact("rollouts", DIGESTS["rollout"], 10), status="finished")
    place.stage("score", "scores/" + "f" * 32, status="failed", error="no")
    place.stage("update", place.artifact("checkpoints", DIGESTS["update"], 5000), status="finished")
    place.artifact("train_states", state_ref(Ref("checkpoints", DIGESTS["update"])).digest, 700)
    place.evaluated(DIGESTS["after"], 4, 0.75)
    place.journal.run_finished(status="failed", error="no")
    whole = place.listed()
    assert whole["runs"][0]["bytes"] == on_disk(place.home.lake)
    end(place, status="failed", error="no")

    def unread(*_: Any) -> Any:
        raise AssertionError("the journal was read")

    with monkeypatch.context() as patch:
        patch.setattr("gradus.tasks.runs.listing.read_open", unread)
        assert place.listed() == whole
        (place.folder / "run.json").write_text('{"verb": "demo"}')
        assert place.run()["verb"] == "demo"
        checkpoint = Ref("checkpoints", DIGESTS["update"])
        (place.store.path(checkpoint) / "model.safetensors").unlink()
        place.journal.pruned([str(checkpoint)], 5000)
        assert place.run()["bytes"] == whole["bytes"] - 5000
    place.journal.run_started({"run": "demo-1"})
    assert place.run()["status"] == "killed"


def test_a_last_line_that_is_damaged_is_named_and_one_of_a_run_with_damage_has_no_sums(place: Place) -> None:
    output = place.artifact("rollouts", DIGESTS["rollout"], 10)
    place.stage("rollout", output, status="finished")
    (place.home.lake / output / "model.safetensors").write_bytes(b"")
    assert done_of(place.folder, place.store) is None
    (place.home.lake / output / "model.safetensors").write_bytes(b"x" * 10)
    end(place, status="finished")
    path = place.folder / EVENTS
    path.write_bytes(path.read_bytes().replace(b'"so_far"', b'"so_faR"'))
    with pytest.raises(CorruptArtifactError, match=rf"{EVENTS} is damaged in line 4"):
        place.listed()
