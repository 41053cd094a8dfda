"""Logs that commands share: appended to, bounded, and quoted from where the writer began."""

from pathlib import Path

import pytest

from gradus.data.errors import StageError
from gradus.tasks.host.processes import child_environment, last_words, log_name, open_log, reward_log
from gradus.tasks.runtime.supervise import Limits, Worker
from gradus.tasks.servers.keeper import MAX_FAILURES
from tests.servers import a_server

ROOT = Path(__file__).parents[3]


def test_a_log_is_appended_to_and_set_aside_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.tasks.host.processes.MAX_LOG_BYTES", 10)
    path = tmp_path / "logs" / "x.log"
    for text in (b"first\n", b"second\n"):
        with open_log(path) as log:
            log.write(text)
    assert path.read_bytes() == b"first\nsecond\n"
    with open_log(path) as log, open_log(path) as again:
        log.write(b"third\n")
        log.flush()
        again.write(b"fourth\n")
    assert path.read_bytes() == b"third\nfourth\n"
    assert path.with_name("x.log.1").read_bytes() == b"first\nsecond\n"


def test_last_words_are_those_behind_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    assert last_words(path) == ""
    path.write_bytes(b"old\n" + b"x" * 10_000 + b"\nnew \xff\n")
    assert last_words(path) == "new \N{REPLACEMENT CHARACTER}"
    assert last_words(path, path.stat().st_size) == ""


def test_a_server_keeps_the_log_of_the_one_before_and_is_not_blamed_for_its_words(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "mlflow-server.log"
    log.parent.mkdir()
    log.write_text("the words of another\n")
    for _ in range(2):
        server = a_server(tmp_path, "no_such_module_of_anybody:create")
        try:
            with pytest.raises(StageError, match="no_such_module_of_anybody"):
                server.wait()
        finally:
            server.close()
    said = log.read_text().splitlines()
    assert said[0] == "the words of another"
    assert len(said) == 1 + 2 * MAX_FAILURES


def test_a_worker_knows_the_folder_of_its_runs_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, environment = tmp_path / "run" / "logs" / "any.log", child_environment({"PYTHONPATH": str(ROOT)})
    worker = Worker(("any", "tests.tasks.host.test_logs:where", tuple(environment.items())), log)
    try:
        found = worker.run({"stage": "score", "reward": "/x/my rewards.py:f"}, Limits(), lambda *_: None)
    finally:
        worker.close()
    assert found == {"log": str(tmp_path / "run" / "logs" / "reward-my_rewards-f.log")}
    assert log_name("math") == "reward-math.log"
    monkeypatch.delenv("GRADUS_RUN_LOGS", raising=False)
    assert reward_log("math") is None


def where(job: dict[str, str], warm: object, beat: object) -> dict[str, str]:
    """What a worker makes of the name of a reward."""
    return {"log": str(reward_log(job["reward"]))}
