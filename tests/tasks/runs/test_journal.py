"""The journal: one line an event, torn lines harmless, no number that is none, bytes counted right."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.errors import CorruptArtifactError
from gradus.tasks.runs.journal import EVENTS, Journal, last_end, read_events, read_lines

ROOT = Path(__file__).parents[3]


def begun(journal: Journal, stage: str = "score", round_: int = 3) -> str:
    return journal.stage_started(
        stage=stage, round=round_, purpose="train", output="scores/" + "ab" * 16, config={"a": 1}, inputs={"r": ["x/y"]}
    )


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.run_started({"run": "demo", "verb": "train"})
    attempt = begun(journal)
    clock = {"clock": {"perf/cpu_s": 2.5}, "step_clock": [{"perf/step_s": 0.5}, {}]}
    report = {"metrics": {"reward/mean": 0.5}, "steps": [{"loss": 2.0}, {"loss": 1}], "summary": {"rows": 7}, **clock}
    journal.stage_finished(attempt, status="finished", seconds=1.25, report=report, folder="/lake/x")
    journal.stage_reused(stage="score", round=4, purpose="eval", output="scores/" + "cd" * 16)
    journal.model_alias("policy", "champion", "checkpoints/" + "ef" * 16)
    journal.run_finished(status="finished")
    events = list(read_events(tmp_path))
    assert [e["event"] for e in events] == [
        "run_started",
        "stage_started",
        "stage_finished",
        "stage_reused",
        "model_alias",
        "run_finished",
    ]
    assert events[0]["owner"]["pid"] == os.getpid()
    assert (events[1]["attempt"], events[1]["config"], events[1]["inputs"]) == (attempt, {"a": 1}, {"r": ["x/y"]})
    assert (events[2]["seconds"], events[2]["summary"], events[2]["folder"]) == (1.25, {"rows": 7}, "/lake/x")
    # The times are here, and what the artifact's own report has is not.
    assert {key: events[2][key] for key in clock} == clock
    assert not {"metrics", "steps"} & events[2].keys()


def test_the_end_of_the_last_command_is_read_with_what_follows_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert last_end(tmp_path) == []
    journal.run_started({"run": "demo"})
    assert last_end(tmp_path) == []
    journal.run_finished(status="failed", error='\n{"event": "run_finished"')
    journal.run_finished(status="finished")
    journal.pruned(["a/b"], 3)
    assert [event["event"] for event in last_end(tmp_path)] == ["run_finished", "pruned"]
    assert last_end(tmp_path)[0]["status"] == "finished"
    path = tmp_path / EVENTS
    path.write_bytes(path.read_bytes().replace(b'"finished"', b'"finisheD"'))
    with pytest.raises(CorruptArtifactError, match="line 3"):
        last_end(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["clock", "step_clock", "summary"])
def test_a_number_that_is_none_is_refused_and_nothing_is_written(tmp_path: Path, value: float, where: str) -> None:
    journal = Journal(tmp_path)
    attempt = begun(journal)
    before = (tmp_path / EVENTS).read_bytes()
    report = {where: [{"loss": value}] if where == "step_clock" else {"loss": value}}
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.stage_finished(attempt, status="finished", seconds=1.0, report=report)
    assert (tmp_path / EVENTS).read_bytes() == before


def test_an_attempt_cannot_end_in_a_way_that_nobody_knows(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(ValueError, match="'done'"):
        journal.stage_finished(begun(journal), status="done", seconds=1.0)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_line_is_ignored_and_the_next_start_mends_it(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path)
    journal.run_started({"run": "demo"})
    journal.run_finished(status="finished")
    path = tmp_path / EVENTS
    path.write_bytes(path.read_bytes()[:-cut])
    assert [e["event"] for e in read_events(tmp_path)] == ["run_started"]
    Journal(tmp_path).run_started({"run": "demo"})
    assert [e["event"] for e in read_events(tmp_path)] == ["run_started", "run_started"]


def test_a_power_cut_that_left_zeros_is_mended(tmp_path: Path) -> None:
    Journal(tmp_path).run_started({"run": "demo"})
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b"\0" * 5000)
    Journal(tmp_path).run_finished(status="finished")
    assert [e["event"] for e in read_events(tmp_path)] == ["run_started", "run_finished"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.run_started({"run": "demo"})
    damaged_at = (tmp_path / EVENTS).stat().st_size
    with (tmp_path / EVENTS).open("ab") as file:
        file.write(b"{oops\n")
    journal.run_finished(status="finished")
    with pytest.raises(CorruptArtifactError, match=f"byte {damaged_at}"):
        list(read_events(tmp_path))


def test_reading_goes_on_from_any_offset_that_reading_gave(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for index in range(5):
        journal.stage_reused(stage="score", round=index, purpose="train", output="scores/" + "ab" * 16)
    whole = list(read_lines(tmp_path / EVENTS))
    for index, (_, offset) in enumerate(whole):
        assert [row["round"] for row, _ in read_lines(tmp_path / EVENTS, offset)] == list(range(index + 1, 5))
    assert list(read_lines(tmp_path / "absent.jsonl")) == []


@settings(max_examples=40)
@given(text=st.text(st.characters(codec=None, exclude_categories=()), max_size=60))
def test_any_text_survives_as_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder)
    journal.stage_finished(begun(journal), status="failed", seconds=0.0, error=text)
    assert list(read_events(folder))[-1]["error"] == text
    assert (folder / EVENTS).read_bytes().count(b"\n") == 2


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)

    def work() -> None:
        for _ in range(20):
            attempt = begun(journal)
            report = {"clock": {attempt: 1.0}, "summary": {"text": "x" * 9000}}
            journal.stage_finished(attempt, status="finished", seconds=0.0, report=report)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(read_events(tmp_path))
    assert len(events) == 160
    assert len({e["attempt"] for e in events}) == 80
    for event in events:
        if event["event"] == "stage_finished":
            assert event["clock"] == {event["attempt"]: 1.0}


def test_a_writer_killed_at_any_moment_leaves_a_journal_that_reads(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gradus.tasks.runs.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\njournal.run_started({}); print('up', flush=True)\n"
        "while True:\n"
        "    a = journal.stage_started(stage='score', round=0, purpose='train', output='o', config={}, inputs={})\n"
        "    journal.stage_finished(a, status='finished', seconds=0.0, report={'clock': {'m': 1.0}})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        while (tmp_path / EVENTS).stat().st_size < 4000:
            assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    Journal(tmp_path).run_finished(status="finished")
    events = list(read_events(tmp_path))
    ended = [e for e in events if e["event"] == "stage_finished"]
    assert len(ended) > 3
    assert all(event["clock"] == {"m": 1.0} for event in ended)
    assert events[-1]["event"] == "run_finished"
    assert all(json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines())
