"""The end of a run: a report is written if there is something new, and its failure is a sentence."""

import json
from pathlib import Path

import psutil
import pytest

from gradus.data.lake.store import Ref
from gradus.flows import session
from gradus.flows.session import RunSpec, guard, open_session
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.listing import list_runs
from gradus.tasks.runtime.calls import Outcome
from gradus.tasks.tracking.facts import REPORT_PAGE, SAMPLE_TABLE

SPEC = RunSpec("made-1", "train", body={"recipe": {"rounds": 1}})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose runs are reported now, to nobody."""
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path))
    monkeypatch.setenv("GRADUS_REPORT", "now")
    monkeypatch.setattr(session, "start_sidecar", lambda *_: None)
    return Home(tmp_path)


def measured(home: Home) -> Path:
    """A stage of the run that has ended with a figure."""
    with open_session(SPEC) as running:
        ref = Ref("scores", "a" * 32)
        running.store.writer(ref).commit()
        attempt = running.journal.stage_started(
            stage="score", round=1, purpose="train", output=str(ref), config={}, inputs={}
        )
        running.journal.stage_finished(
            attempt, status="finished", seconds=1.0, report={"metrics": {"reward/mean": 0.5}}
        )
        running.outcomes.append(Outcome("score", "train", 1, ref, reused=False, seconds=1.0, report={}))
    return home.runs / SPEC.name


def statuses(folder: Path) -> list[str]:
    return [event["status"] for event in read_events(folder) if event["event"] == "run_finished"]


def test_a_training_that_measured_something_leaves_a_report_and_one_that_reuses_all_keeps_it(home: Home) -> None:
    folder = measured(home)
    assert ": finished." in (folder / REPORT_PAGE).read_text(encoding="utf-8")
    assert json.loads((folder / SAMPLE_TABLE).read_text())["data"] == []
    (folder / REPORT_PAGE).write_text("kept")
    with open_session(SPEC) as running:
        ref = Ref("scores", "a" * 32)
        running.outcomes.append(Outcome("score", "train", 1, ref, reused=True, seconds=0.0, report={}))
    assert (folder / REPORT_PAGE).read_text() == "kept"
    assert statuses(folder) == ["finished", "finished"]


def test_workers_that_compute_at_once_share_the_threads_and_sleep_while_they_wait(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADUS_REPORT", "later")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before = psutil.Process().children()

    def environment() -> dict[str, str]:
        """That of the worker, once it runs a program of its own."""
        workers = [each for each in psutil.Process().children() if each not in before]
        (found,) = (each.environ() for each in workers if "gradus.tasks.runtime.worker" in each.cmdline())
        return found

    for apart, threads in ((False, "4"), (True, "2")):
        with open_session(RunSpec("made-2", "train"), separate_sampler=apart) as running:
            running.pool.prestart("score")
            found = environment()
        assert (found["OMP_NUM_THREADS"], found["OMP_WAIT_POLICY"]) == (threads, "PASSIVE")


def test_a_report_that_fails_is_a_sentence_and_the_training_is_finished(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_session(SPEC):
        pass
    assert not (home.runs / SPEC.name / REPORT_PAGE).exists()  # nothing was measured
    monkeypatch.setattr("gradus.tasks.inspect.report.at_end.LIMIT_S", 0.01)
    folder = measured(home)
    assert "the report was not written: it took longer than 0 s; try `gradus report made-1`" in capsys.readouterr().err
    assert not (folder / REPORT_PAGE).exists()
    assert statuses(folder) == ["finished", "finished"]


def test_a_run_killed_once_its_settings_are_written_is_listed_and_resumed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        """In place of SIGKILL: nothing of the session runs after it."""

    def killed(folder: Path, spec: RunSpec) -> None:
        guard(folder, spec)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(session, "guard", killed)
        with pytest.raises(KilledError):
            open_session(SPEC).__enter__()
    assert (home.runs / SPEC.name / "run.json").exists()
    assert [(run["run"], run["status"]) for run in list_runs(home.runs, home.lake)["runs"]] == [(SPEC.name, "killed")]
    assert statuses(measured(home)) == ["finished"]


def test_the_end_of_a_run_is_written_though_its_sums_cannot_be_read(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("gradus.tasks.runs.listing.Sizes.of", unreadable)
    folder = measured(home)
    assert [event.get("so_far") for event in read_events(folder) if event["event"] == "run_finished"] == [None]
